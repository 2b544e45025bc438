"""Places in memory: what is computed right in a variable, and what must be copied."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from runner.engine.compile.plan import Place, Wire
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from tests.engine.compile.laying import LINE, SIZE, SPEC, Laid, W, assigned, chain, greedy, placeholder, variable
from tests.engine.run.fake_kernels import REVERSED, VIA_PLAIN, always, converting, fake_kernel, fake_registry
from tests.engine.running import CPU_1, Bench

See = Callable[[Graph, Tensor], Tensor]

VALUE = np.linspace(-1.0, 1.0, SIZE)


def test_an_assigned_value_is_computed_in_its_variable() -> None:
    graph = Graph()
    variable(graph)
    y = ops.neg(graph, placeholder(graph), name="n")
    assigned(graph, ops.reshape(graph, ops.identity(graph, y), SPEC.shape))
    laid = Laid(graph, [y])
    assert (laid.ops, laid.at("n")) == (["neg"], W)


def test_an_assigned_value_in_the_variable_s_layout_is_converted_into_it() -> None:
    graph = Graph()
    ops.exp(graph, variable(graph))
    assigned(graph, ops.neg(graph, placeholder(graph)))
    strange = fake_kernel("exp", always(REVERSED, REVERSED))
    laid = Laid(graph, [], strange, fake_kernel("convert", converting(VIA_PLAIN)))
    assert laid.ops == ["exp", "neg", "convert"]
    assert laid.at("set_w/convert") == W


def old_and_new(graph: Graph) -> tuple[Tensor, Tensor]:
    w = variable(graph)
    return w, ops.add(graph, w, placeholder(graph), name="new")


def test_an_update_in_place_needs_the_kernel_s_leave() -> None:
    graph = Graph()
    assigned(graph, old_and_new(graph)[1])
    assert (Laid(graph, []).ops, Laid(graph, []).at("new").variable) == (["add", "assign"], None)
    laid = Laid(graph, [], greedy("add", [(0, 0)]))
    assert (laid.ops, laid.at("new")) == (["add"], W)
    assert Laid(graph, [], greedy("add", [(1, 0)])).ops == ["add", "assign"]


def test_an_update_in_place_needs_leave_for_every_time_the_old_value_is_read() -> None:
    graph = Graph()
    w = variable(graph)
    assigned(graph, ops.add(graph, w, ops.identity(graph, w)))
    assert Laid(graph, [], greedy("add", [(0, 0)])).ops == ["add", "assign"]
    assert Laid(graph, [], greedy("add", [(0, 0), (1, 0)])).ops == ["add"]


def test_a_variable_whose_old_value_is_read_later_is_assigned_at_the_end() -> None:
    graph = Graph()
    w, new = old_and_new(graph)
    assigned(graph, new)
    after = ops.add(graph, ops.reshape(graph, w, SPEC.shape), new)
    laid = Laid(graph, [after], greedy("add", [(0, 0)]))
    assert laid.ops == ["add", "add", "assign"]
    assert laid.at("new").variable is None


def test_a_new_value_may_be_computed_in_place_once_the_old_one_was_read() -> None:
    graph = Graph()
    w, x = variable(graph), placeholder(graph)
    before = ops.neg(graph, w)
    assigned(graph, ops.neg(graph, x, name="new"))
    laid = Laid(graph, [before])
    assert (laid.ops, laid.at("new")) == (["neg", "neg"], W)


def test_what_is_computed_from_a_new_value_does_not_spoil_it() -> None:
    graph = Graph()
    variable(graph)
    new = ops.neg(graph, placeholder(graph), name="new")
    assigned(graph, new)
    laid = Laid(graph, [chain(graph, new, 2)], greedy("neg"))
    assert (laid.at("new"), laid.at("n0").variable, laid.at("n1").variable) == (W, None, None)


def test_a_fed_or_fetched_value_is_copied_into_its_variable_or_out_of_it() -> None:
    graph = Graph()
    w = variable(graph)
    assigned(graph, placeholder(graph))
    assert Laid(graph, []).ops == ["assign"]
    assert Laid(graph, [w]).ops == ["convert", "assign"]
    assert Laid(graph, [Tensor("set_w")]).ops == ["assign"]


def test_one_value_for_two_variables_is_computed_in_one_and_copied_to_the_other() -> None:
    graph = Graph()
    for name in ("w", "v"):
        variable(graph, name)
    new = ops.neg(graph, placeholder(graph), name="new")
    assigned(assigned(graph, new, "w"), new, "v")
    laid = Laid(graph, [new])
    assert (laid.ops, laid.at("new")) == (["neg", "assign"], W)


def test_variables_that_change_places_need_one_more() -> None:
    graph = Graph()
    w, v = variable(graph, "w"), variable(graph, "v")
    laid = Laid(assigned(assigned(graph, v, "w"), w, "v"), [])
    assert (laid.ops, laid.placed.arena_bytes) == (["convert", "convert", "assign"], LINE)


def test_each_of_several_outputs_is_computed_in_its_variable() -> None:
    graph = Graph()
    for name, size in (("w", 3), ("v", 5)):
        ops.variable(graph, (size,), "float64", name=name)
    low, high = ops.split(graph, placeholder(graph), 0, (3, 5), name="parts")
    assigned(assigned(graph, low, "w"), high, "v")
    laid = Laid(graph, [])
    assert (laid.ops, laid.at("parts", 0), laid.at("parts", 1)) == (["split"], W, Place(0, "v"))


def test_what_is_received_is_copied_from_its_wire_into_its_variable() -> None:
    graph = Graph()
    variable(graph)
    assigned(graph, ops.recv(graph, key="k", source=CPU_1, shape=SPEC.shape, dtype=SPEC.dtype, name="r"))
    laid = Laid(graph, [])
    assert (laid.ops, laid.at("r")) == (["recv", "assign"], Place(0, wire=Wire("k", CPU_1)))


WAYS_TO_SEE: dict[str, See] = {
    "variable": lambda graph, w: w,
    "identity": lambda graph, w: ops.identity(graph, w),
    "reshape": lambda graph, w: ops.reshape(graph, w, (2, 4)),
    "both": lambda graph, w: ops.reshape(graph, ops.stop_gradient(graph, ops.identity(graph, w)), SPEC.shape),
}


@pytest.mark.parametrize("see", WAYS_TO_SEE.values(), ids=WAYS_TO_SEE)
@pytest.mark.parametrize("pairs", [(), ((0, 0),), ((0, 0), (1, 0))])
def test_a_fetched_variable_has_the_value_of_the_start_of_the_step(
    see: See, pairs: tuple[tuple[int, int], ...]
) -> None:
    graph = Graph()
    w, new = old_and_new(graph)
    seen = see(graph, w)
    assigned(graph, new)
    bench = Bench(graph, fake_registry(greedy("add", pairs)), [seen, new, Tensor("set_w")])
    bench.put("w", np.zeros(SIZE))
    for step in range(3):
        old, *fetched = bench.run({Tensor("x"): VALUE}, step).values()
        np.testing.assert_array_equal(old.ravel(), step * VALUE)
        for value in (*fetched, bench.value("w")):
            np.testing.assert_array_equal(value, step * VALUE + VALUE)
