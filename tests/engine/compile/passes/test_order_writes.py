"""Variables in place: whatever order the edges leave, a step reads what was there at its start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.compile.passes.optimize import default_passes, optimize
from runner.engine.compile.passes.order_writes import order_writes
from runner.engine.compile.passes.rewriting import ALIASES
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.verify import verify
from runner.engine.run.kernel_table import load_kernels
from runner.kernels.elementwise import parse
from tests.engine.compile.passes.exactness import assert_same_bits, assigned_values, roots_of
from tests.engine.compile.variables_in_place import any_order, play
from tests.engine.graph.random_graphs import TrainingSample, training_samples
from tests.oracles import evaluate


@pytest.fixture
def graph() -> Graph:
    """Two variables, v and w, of one shape."""
    graph = Graph()
    ops.variable(graph, (2,), "float64", name="v")
    ops.variable(graph, (2,), "float64", name="w")
    return graph


V, W = Tensor("v"), Tensor("w")


def chain(graph: Graph, text: str, *inputs: Tensor, name: str) -> Tensor:
    """An element-wise node with one output."""
    program = parse(text, len(inputs), (len(inputs) + text.count(";"),))
    return ops.elementwise(graph, inputs, program, name=name)[0]


def waits(graph: Graph, name: str) -> set[str]:
    """What a node waits for without reading it."""
    return set(graph.nodes[name].control_inputs)


def before(graph: Graph, first: str, second: str) -> bool:
    """Whether one node stands before another."""
    order = list(graph.nodes)
    return order.index(first) < order.index(second)


def test_every_reader_runs_before_the_assign(graph: Graph) -> None:
    new = ops.tanh(graph, V, name="new")
    ops.assign(graph, V, new, name="write")
    ops.exp(graph, V, name="late")
    ordered = order_writes(graph)
    assert waits(ordered, "write") == {"new", "late"}
    assert list(ordered.nodes) == ["v", "w", "new", "late", "write"]
    verify(ordered)


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_who_reads_an_alias_reads_the_variable(graph: Graph, alias: str) -> None:
    view = ops.reshape(graph, V, (2, 1), name="view") if alias == "reshape" else graph.add(alias, [V], name="view")[0]
    again = ops.identity(graph, view, name="again")
    ops.exp(graph, again, name="reader")
    ops.assign(graph, V, ops.neg(graph, W, name="new"), name="write")
    assert waits(order_writes(graph), "write") == {"view", "again", "reader"}


def test_a_graph_without_assigns_stays_as_it_is(graph: Graph) -> None:
    ops.exp(graph, V, name="reader")
    assert order_writes(graph).nodes == graph.nodes


def test_who_reads_an_assign_reads_the_assigned_value(graph: Graph) -> None:
    new = ops.neg(graph, W, name="new")
    written = ops.assign(graph, V, new, name="write")
    ops.exp(graph, written, name="reader")
    ops.assign(graph, W, written, name="write_w")
    ordered = order_writes(graph)
    assert ordered.nodes["reader"].inputs == (new,)
    assert ordered.nodes["write_w"].inputs == (W, new)
    assert waits(ordered, "write") == set()


def test_a_chain_of_assigns_takes_the_first_value(graph: Graph) -> None:
    """v <- w, w <- (the new v): w keeps its value, which is copied because it is a variable's own."""
    written = ops.assign(graph, V, W, name="write_v")
    ops.assign(graph, W, written, name="write_w")
    ordered = order_writes(graph)
    copy = Tensor("write_v/copy")
    assert ordered.nodes["write_v/copy"].op == "convert"
    assert ordered.nodes["write_v"].inputs == (V, copy)
    assert ordered.nodes["write_w"].inputs == (W, copy)
    assert waits(ordered, "write_w") == {"write_v/copy"}


def test_a_swap_goes_through_two_copies(graph: Graph) -> None:
    ops.assign(graph, V, W, name="write_v")
    ops.assign(graph, W, ops.identity(graph, V, name="alias"), name="write_w")
    ordered = order_writes(graph)
    verify(ordered)
    assert [node.name for node in ordered if node.op == "convert"] == ["write_v/copy", "write_w/copy"]
    assert waits(ordered, "write_v") == {"alias", "write_w/copy"}
    assert waits(ordered, "write_w") == {"write_v/copy"}
    values = {"v": np.array([1.0, 2.0]), "w": np.array([3.0, 4.0])}
    memory, _ = play(ordered, list(ordered.nodes), values, {})
    assert (memory["v"].tolist(), memory["w"].tolist()) == ([3.0, 4.0], [1.0, 2.0])


def test_the_copy_of_a_name_that_is_taken_has_a_number(graph: Graph) -> None:
    ops.neg(graph, V, name="write/copy")
    ops.assign(graph, V, W, name="write")
    assert "write/copy_1" in order_writes(graph)


def test_a_computed_update_waits_itself_for_the_other_readers(graph: Graph) -> None:
    new = chain(graph, "mul 0 #0.9; add 1 0", V, name="update")
    ops.assign(graph, V, new, name="write")
    ops.exp(graph, V, name="reader")
    ordered = order_writes(graph)
    assert waits(ordered, "update") == {"reader"}
    assert waits(ordered, "write") == set()
    assert before(ordered, "reader", "update")


def test_momentum_is_one_node_that_waits_for_the_readers_of_both(graph: Graph) -> None:
    gradient = ops.tanh(graph, V, name="gradient")
    program = parse("mul 0 #0.9; sub 3 1; add 2 4", 3, (5, 4))
    new_w, new_v = ops.elementwise(graph, [V, gradient, W], program, name="update")
    ops.assign(graph, V, new_v, name="write_v")
    ops.assign(graph, W, new_w, name="write_w")
    ops.exp(graph, W, name="watched")
    ordered = order_writes(graph)
    assert waits(ordered, "update") == {"gradient", "watched"}
    assert waits(ordered, "write_v") == waits(ordered, "write_w") == set()


@pytest.mark.parametrize("obstacle", ["another reader", "an ancestor of a reader", "another op", "another device"])
def test_where_the_update_cannot_write_the_assign_waits(graph: Graph, obstacle: str) -> None:
    device = "/job:worker/task:1/device:cpu:0" if obstacle == "another device" else ""
    with graph.device(device):
        new = chain(graph, "neg 0", V, name="update")
    if obstacle == "another op":
        new = ops.neg(graph, V, name="negated")
    if obstacle == "another reader":
        ops.exp(graph, new, name="watcher")
    reader = [V, new] if obstacle == "an ancestor of a reader" else [V, W]
    ops.add(graph, *reader, name="reader")
    ops.assign(graph, V, new, name="write")
    ordered = order_writes(graph)
    assert "reader" in waits(ordered, "write")
    assert waits(ordered, "update") == set()


def test_of_two_updates_that_read_each_others_variable_one_writes_later(graph: Graph) -> None:
    """Each would have to wait for the other."""
    ops.assign(graph, V, chain(graph, "neg 0", W, name="from_w"), name="write_v")
    ops.assign(graph, W, chain(graph, "neg 0", V, name="from_v"), name="write_w")
    ordered = order_writes(graph)
    assert waits(ordered, "from_w") == {"from_v"}
    assert waits(ordered, "write_v") == set()
    assert waits(ordered, "from_v") == set()
    assert waits(ordered, "write_w") == {"from_w"}


def test_a_reader_that_waits_for_the_write_is_refused(graph: Graph) -> None:
    ops.assign(graph, V, ops.neg(graph, W, name="new"), name="write")
    with graph.control_dependencies(["write"]):
        ops.exp(graph, W, name="between")
    ops.tanh(graph, V, name="early")
    with graph.control_dependencies(["between"]):
        ops.exp(graph, V, name="reader")
    with pytest.raises(
        ShapeError,
        match=r"^variable 'v': node 'reader' reads its value from the start of the step, but has to run after node "
        r"'write', which replaces it; let 'reader' read the output of 'write' for the new value, or remove its "
        r"dependency on 'write'$",
    ):
        order_writes(graph)


def test_edges_do_not_depend_on_where_nodes_stand(graph: Graph) -> None:
    """A reader that stands behind the assign is brought before it, together with what it needs, and no more."""
    ops.assign(graph, V, ops.neg(graph, W, name="new"), name="write")
    ops.exp(graph, W, name="x")
    ops.add(graph, Tensor("x"), V, name="reader")
    ops.exp(graph, W, name="y")
    assert list(order_writes(graph).nodes) == ["v", "w", "new", "x", "reader", "write", "y"]


@settings(max_examples=150)
@given(training_samples(controls=False), st.booleans(), st.integers(0, 99))
def test_any_order_that_is_left_gives_the_values_of_the_graph(sample: TrainingSample, fuse: bool, seed: int) -> None:
    graph = sample.graph
    if fuse:
        passes = default_passes(load_kernels())
        graph, _ = optimize(graph, roots_of(graph, sample.fetches), passes)
    ordered = order_writes(graph)
    verify(ordered)
    variables = {t.node: value for t, value in sample.feeds.items() if sample.graph.nodes[t.node].op == "variable"}
    placeholders = {t: value for t, value in sample.feeds.items() if t.node not in variables}
    with np.errstate(all="ignore"):
        memory, computed = play(ordered, any_order(ordered, np.random.default_rng(seed)), variables, placeholders)
        known = [tensor for tensor in computed if tensor.node in graph]
        for tensor, expected in zip(known, evaluate(graph, known, sample.feeds), strict=True):
            assert_same_bits(computed[tensor], expected)
        for name, tensor in assigned_values(graph).items():
            (expected,) = evaluate(graph, [tensor], sample.feeds)
            assert_same_bits(memory[graph.nodes[name].inputs[0].node], expected)


@settings(max_examples=60)
@given(training_samples())
def test_the_result_is_a_graph_in_order_or_the_variable_is_named(sample: TrainingSample) -> None:
    refusal = ""
    try:
        verify(order_writes(sample.graph))
    except ShapeError as error:
        refusal = str(error)
    if refusal:
        assert "reads its value from the start of the step" in refusal
        assert any(node.control_inputs for node in sample.graph)


def test_what_others_wait_for_and_their_layers_are_kept(graph: Graph) -> None:
    ops.exp(graph, W, name="first")
    with graph.control_dependencies(["first"]):
        ops.assign(graph, V, ops.neg(graph, V, name="new"), name="write")
    kept: Node = order_writes(graph).nodes["write"]
    assert set(kept.control_inputs) == {"first", "new"}
    assert kept.colocate_with == ("v",)
