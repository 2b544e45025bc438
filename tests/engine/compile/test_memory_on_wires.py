"""Values on wires: computed where their readers look, read where they lie, and left alone until the step ends."""

from __future__ import annotations

import pytest

from runner.engine.compile.passes.transfers import sent_tensor, transfer_key
from runner.engine.compile.plan import Place, Wire
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from tests.engine.compile.laying import LINE, SPEC, Laid, W, assigned, chain, greedy, placeholder, variable
from tests.engine.running import CPU_0, CPU_1

OTHER = "/job:worker/task:2/device:cpu:0"


def sent(graph: Graph, value: Tensor, *destinations: str) -> None:
    """Send a value, as the cut of a graph does."""
    for destination in destinations or (CPU_1,):
        ops.send(graph, value, key=transfer_key(value, destination), destination=destination)


def received(graph: Graph, name: str = "r", key: str = "x:0->here") -> Tensor:
    return ops.recv(graph, key=key, source=CPU_1, shape=SPEC.shape, dtype=SPEC.dtype, name=name)


def test_a_key_says_what_is_sent() -> None:
    assert sent_tensor(transfer_key(Tensor("scope/x", 1), CPU_0)) == "scope/x:1"
    assert sent_tensor("a") == "a"


def test_what_is_sent_is_computed_where_its_readers_look_once_for_all_of_them() -> None:
    graph = Graph()
    sent(graph, ops.neg(graph, placeholder(graph), name="n"), CPU_1, OTHER)
    laid = Laid(graph, [])
    assert laid.ops == ["neg", "send", "send"]
    assert laid.at("n") == Place(0, wire=Wire("n:0"))


def test_a_fed_value_may_be_put_right_where_readers_look() -> None:
    graph = Graph()
    sent(graph, placeholder(graph))
    laid = Laid(graph, [])
    assert (laid.ops, laid.fed(), laid.placed.arena_bytes) == (["send"], Place(0, wire=Wire("x:0")), 0)


def test_a_variable_is_copied_once_however_many_read_it() -> None:
    graph = Graph()
    w = variable(graph)
    sent(graph, w, CPU_1, OTHER)
    assigned(graph, ops.neg(graph, w, name="n"))
    laid = Laid(graph, [], greedy("neg"))
    assert (laid.ops.count("convert"), laid.at("n")) == (1, W)


def test_a_value_that_is_sent_and_assigned_is_computed_on_its_wire() -> None:
    graph = Graph()
    variable(graph)
    new = ops.neg(graph, placeholder(graph), name="n")
    sent(graph, new)
    laid = Laid(assigned(graph, new), [])
    assert (sorted(laid.ops), laid.at("n")) == (["assign", "neg", "send"], Place(0, wire=Wire("n:0")))


def test_a_value_of_two_names_lies_on_a_wire_for_each() -> None:
    graph = Graph()
    value = ops.neg(graph, placeholder(graph), name="n")
    sent(graph, value)
    sent(graph, ops.reshape(graph, value, (2, 4), name="seen"))
    laid = Laid(graph, [])
    assert laid.ops.count("convert") == 1
    wires = {place.wire for place in laid.placed.places} - {None}
    assert wires == {Wire("n:0"), Wire("seen:0")}


def test_what_is_received_is_read_where_it_lies_and_copied_to_be_sent_on() -> None:
    graph = Graph()
    passed = received(graph)
    sent(graph, ops.identity(graph, passed, name="on"))
    laid = Laid(graph, [ops.neg(graph, passed)], greedy("neg"))
    assert laid.at("r") == Place(0, wire=Wire("x:0->here", CPU_1))
    assert laid.ops.count("convert") == 1


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool", "uint8"])
def test_what_a_kernel_checks_before_it_uses_it_is_copied_out_of_its_sender_s_reach(dtype: str) -> None:
    graph = Graph()
    came = ops.recv(graph, key="x:0->here", source=CPU_1, shape=(4,), dtype=dtype, name="r")
    laid = Laid(graph, [ops.identity(graph, came)])
    (fetched,) = laid.arranged.fetches.values()
    assert laid.ops == ["recv", "convert"]
    assert (laid.placed.places[fetched], laid.placed.arena_bytes) == (Place(0), LINE)


def test_nothing_takes_over_the_memory_of_what_came_or_was_sent() -> None:
    graph = Graph()
    came, gone = received(graph), ops.exp(graph, placeholder(graph), name="gone")
    sent(graph, gone)
    ends = [ops.neg(graph, came, name="a"), ops.neg(graph, gone, name="b")]
    laid = Laid(graph, ends, greedy("neg"))
    assert (laid.at("a").wire, laid.at("b").wire) == (None, None)


def test_what_is_sent_may_be_computed_in_place_on_its_wire() -> None:
    graph = Graph()
    sent(graph, chain(graph, placeholder(graph), 3))
    laid = Laid(graph, [], greedy("neg"))
    assert {laid.at(f"n{k}") for k in range(3)} == {Place(0, wire=Wire("n2:0"))}
