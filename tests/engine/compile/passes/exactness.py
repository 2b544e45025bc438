"""Checks that a pass returns a legal graph and that its values equal the original values bit for bit."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.compile.passes.rewriting import Moved, Roots
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.verify import verify
from tests.oracles import evaluate

Array = NDArray[Any]


def counts(graph: Graph) -> Counter[str]:
    """Return the number of nodes of each op."""
    return Counter(node.op for node in graph)


def assigned_values(graph: Graph) -> dict[str, Tensor]:
    """Return a map from the name of each assign node to the tensor that it assigns."""
    return {node.name: node.inputs[1] for node in graph if node.op == "assign"}


def roots_of(graph: Graph, fetches: Sequence[Tensor]) -> Roots:
    """Return the fetches and the assign nodes of a graph as its roots."""
    return Roots.of(fetches, assigned_values(graph))


def outcome(graph: Graph, fetches: Sequence[Tensor], feeds: Mapping[Tensor, Array]) -> list[Array]:
    """Return the reference values of the fetches, then of the assigned tensors in order of the assign nodes' names."""
    assigned = [tensor for _, tensor in sorted(assigned_values(graph).items())]
    with np.errstate(all="ignore"):
        return evaluate(graph, [*fetches, *assigned], feeds)


def assert_unchanged(
    before: Graph, after: Graph, moved: Moved, fetches: Sequence[Tensor], feeds: Mapping[Tensor, Array]
) -> None:
    """Assert that both graphs assign the same variables and that their values are equal bit for bit."""
    verify(after)
    assert assigned_values(before).keys() == assigned_values(after).keys()
    assert_outcome(after, [moved.get(t, t) for t in fetches], feeds, outcome(before, fetches, feeds))


def assert_outcome(
    graph: Graph, fetches: Sequence[Tensor], feeds: Mapping[Tensor, Array], expected: Sequence[Array]
) -> None:
    """Assert that the fetched and assigned values equal the expected ones bit for bit."""
    for a, b in zip(expected, outcome(graph, fetches, feeds), strict=True):
        assert_same_bits(a, b)


def assert_same_bits(a: Array, b: Array) -> None:
    """Assert that dtypes, shapes and bits are equal; all NaNs count as equal."""
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)
    if a.dtype.kind == "f":
        numbers = ~np.isnan(a)
        np.testing.assert_array_equal(np.signbit(a)[numbers], np.signbit(b)[numbers])
