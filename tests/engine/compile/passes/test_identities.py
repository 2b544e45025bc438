"""What computes its input is not read; what differs from its input in one bit is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from runner.engine.compile.passes.identities import remove_identities
from runner.engine.compile.passes.rewriting import Roots
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from tests.engine.compile.passes.exactness import Array, assert_unchanged

HERE, THERE = "/job:worker/task:0/device:cpu:0", "/job:worker/task:1/device:cpu:0"
SHAPE = (2, 3)
AWKWARD = np.array([[0.0, -0.0, np.inf], [-np.inf, np.nan, 5e-324]])

Build = Callable[[Graph, Tensor], Tensor]


def filled(graph: Graph, number: float, *shape: int) -> Tensor:
    return ops.fill(graph, number, shape, "float64")


SAME: dict[str, Build] = {
    "identity": ops.identity,
    "stop_gradient": ops.stop_gradient,
    "reshape": lambda g, x: ops.reshape(g, x, SHAPE),
    "reshapes there and back": lambda g, x: ops.reshape(g, ops.reshape(g, x, (3, 2)), SHAPE),
    "cast": lambda g, x: ops.cast(g, x, "float64"),
    "broadcast_to": lambda g, x: ops.broadcast_to(g, x, SHAPE),
    "a sum of one": lambda g, x: ops.add_n(g, [x]),
    "x * 1": lambda g, x: ops.mul(g, x, filled(g, 1.0)),
    "1 * x": lambda g, x: ops.mul(g, filled(g, 1.0, *SHAPE), x),
    "x / 1": lambda g, x: ops.div(g, x, filled(g, 1.0, 3)),
    "x - 0": lambda g, x: ops.sub(g, x, filled(g, 0.0)),
    "several": lambda g, x: ops.identity(g, ops.scale(g, ops.stop_gradient(g, x), 1.0)),
}

DIFFERENT: dict[str, Build] = {
    "x + 0": lambda g, x: ops.add(g, x, filled(g, 0.0)),
    "x - -0": lambda g, x: ops.sub(g, x, filled(g, -0.0)),
    "0 - x": lambda g, x: ops.sub(g, filled(g, 0.0), x),
    "1 / x": lambda g, x: ops.div(g, filled(g, 1.0), x),
    "x * -1": lambda g, x: ops.mul(g, x, filled(g, -1.0)),
    "x * 1, broadcast": lambda g, x: ops.mul(g, x, filled(g, 1.0, 4, 2, 3)),
    "another shape": lambda g, x: ops.reshape(g, x, (3, 2)),
    "another dtype": lambda g, x: ops.cast(g, x, "float32"),
    "more of it": lambda g, x: ops.broadcast_to(g, x, (4, 2, 3)),
    "a sum of two": lambda g, x: ops.add_n(g, [x, filled(g, 0.0, *SHAPE)]),
    "a copy": ops.convert,
}


def test_what_waits_for_others_is_read_on() -> None:
    graph = Graph()
    x = ops.placeholder(graph, SHAPE, "float64", name="x")
    other = ops.neg(graph, x, name="other")
    with graph.control_dependencies([other.node]):
        held = ops.identity(graph, x, name="held")
    ops.neg(graph, held, name="reader")
    result, moved = remove_identities(graph, Roots())
    assert result.nodes["reader"].inputs == (held,)
    assert not moved


def rewritten(build: Build) -> tuple[Graph, Tensor, Tensor, dict[Tensor, Tensor]]:
    """A graph in which a node reads what ``build`` adds over x, after the pass: x, that tensor, and what moved."""
    graph = Graph()
    x = ops.placeholder(graph, SHAPE, "float64", name="x")
    y = build(graph, x)
    reader = ops.relu(graph, y, name="reader")
    result, moved = remove_identities(graph, Roots.of([y, reader]))
    feeds: dict[Tensor, Array] = {x: AWKWARD}
    assert_unchanged(graph, result, moved, [y, reader], feeds)
    again, _ = remove_identities(result, Roots.of([moved.get(y, y), reader]))
    assert again.nodes == result.nodes
    return result, x, y, moved


@pytest.mark.parametrize("build", SAME.values(), ids=SAME.keys())
def test_what_computes_its_input_is_not_read(build: Build) -> None:
    result, x, y, moved = rewritten(build)
    assert moved[y] == x
    assert result.nodes["reader"].inputs == (x,)


@pytest.mark.parametrize("build", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_what_computes_something_else_is_read(build: Build) -> None:
    result, _, y, moved = rewritten(build)
    assert y not in moved
    assert result.nodes["reader"].inputs == (y,)


def test_a_reshape_of_a_reshape_reads_what_that_read() -> None:
    result, x, y, _ = rewritten(lambda g, x: ops.reshape(g, ops.reshape(g, x, (6,)), (1, 6)))
    assert result.nodes[y.node].inputs == (x,)


def test_an_assign_gives_what_it_is_given_and_still_names_its_variable() -> None:
    graph = Graph()
    v = ops.variable(graph, SHAPE, "float64", name="v")
    new = ops.neg(graph, ops.identity(graph, v), name="new")
    written = ops.assign(graph, v, new)
    ops.exp(graph, written, name="reader")
    result, moved = remove_identities(graph, Roots())
    assert moved[written] == new
    assert result.nodes["reader"].inputs == (new,)
    assert result.nodes[written.node].inputs == (v, new)
    assert result.nodes["new"].inputs == (v,)


def test_what_lies_on_another_device_is_not_the_same() -> None:
    graph = Graph()
    with graph.device(HERE):
        x = ops.placeholder(graph, SHAPE, "float64")
    with graph.device(THERE):
        there = ops.identity(graph, x)
        ops.exp(graph, there, name="reader")
    result, moved = remove_identities(graph, Roots())
    assert moved == {}
    assert result.nodes == graph.nodes


def test_reshapes_on_two_devices_stay_two() -> None:
    graph = Graph()
    with graph.device(HERE):
        flat = ops.reshape(graph, ops.placeholder(graph, SHAPE, "float64"), (6,))
    with graph.device(THERE):
        ops.reshape(graph, flat, SHAPE, name="back")
    assert remove_identities(graph, Roots())[0].nodes["back"].inputs == (flat,)
