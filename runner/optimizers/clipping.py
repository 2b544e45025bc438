"""Clipping of gradients by their global norm (Pascanu et al. 2013, algorithm 1).

Gradients may be on several devices: what reads a whole gradient is computed where that gradient is, and only scalars
are computed where the caller says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.tensor import Tensor


def global_norm(graph: Graph, tensors: Sequence[Tensor]) -> Tensor:
    """Add the Euclidean norm () of all elements of float tensors of one dtype, taken as one vector.

    Squares are summed in that dtype, tensor by tensor in the given order. In float32 a norm beyond 1.8e19
    overflows to infinity.
    """
    squares = []
    for tensor in tensors:
        with _beside(graph, tensor):
            squares.append(ops.reduce_sum(graph, ops.square(graph, tensor)))
    return ops.sqrt(graph, ops.add_n(graph, squares), name="global_norm")


def clip_factor(graph: Graph, tensors: Sequence[Tensor], limit: float) -> Tensor:
    """Add min(1, limit / global norm), () in the dtype of the tensors, which then are no longer than ``limit`` > 0.

    Exactly 1 for tensors that are short enough. NaN for a norm that is not finite, so that a step that failed is seen
    to have failed.
    """
    norm = global_norm(graph, tensors)
    bound = ops.fill(graph, limit, (), graph.spec(norm).dtype)
    # limit / limit is exactly 1, so the maximum needs no case distinction and never divides by zero.
    factor = ops.div(graph, bound, ops.maximum(graph, norm, bound))
    # 0 for a finite norm; without it an infinite one would turn every finite gradient into an innocent 0.
    failed = ops.sub(graph, norm, norm)
    return ops.add(graph, factor, failed)


def shortened(graph: Graph, tensors: Sequence[Tensor], factor: Tensor) -> list[Tensor]:
    """Add every tensor times a factor (), each where it is."""
    clipped = []
    for tensor in tensors:
        with _beside(graph, tensor):
            clipped.append(ops.mul(graph, tensor, factor))
    return clipped


@contextmanager
def _beside(graph: Graph, tensor: Tensor) -> Iterator[None]:
    """Put what is added within where ``tensor`` is."""
    with graph.device(graph.nodes[tensor.node].device):
        yield
