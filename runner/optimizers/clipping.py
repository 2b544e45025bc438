"""Clipping of gradients by their global norm (Pascanu et al. 2013, algorithm 1).

Gradients may be on several devices: each is read on its own device, and scalars are computed on the caller's.
"""

from collections.abc import Sequence

from runner.engine.graph import ops
from runner.engine.graph.expression import Expr, apply
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor


def global_norm(graph: Graph, tensors: Sequence[Tensor]) -> Tensor:
    """Add the Euclidean norm () of all elements of float tensors of one dtype, taken as one vector.

    Squares are summed in that dtype, tensor by tensor in the given order. In float32 a norm beyond 1.8e19 overflows to
    infinity.
    """
    squares = []
    for tensor in tensors:
        with graph.device(graph.nodes[tensor.node].device):
            squares.append(ops.reduce_sum(graph, ops.square(graph, tensor)))
    return ops.sqrt(graph, ops.add_n(graph, squares), name="global_norm")


def clip_factor(graph: Graph, tensors: Sequence[Tensor], limit: float) -> Tensor:
    """Add min(1, limit / global norm), () in the dtype of the tensors; the tensors times it are at most ``limit`` long.

    limit: above 0. The factor is exactly 1 for tensors that are short enough, and NaN for a norm that is not finite, so
    that the failure of the step is noticed.
    """
    norm = Expr(graph, global_norm(graph, tensors))
    bound = norm.scalar(limit)
    # bound / bound is exactly 1, so the maximum needs no case distinction and never divides by zero.
    factor = bound / apply(ops.maximum, norm, bound)
    # norm - norm is 0 if the norm is finite; without it an infinite norm would turn all finite gradients into 0.
    return (factor + (norm - norm)).tensor


def shortened(graph: Graph, tensors: Sequence[Tensor], factor: Tensor) -> list[Tensor]:
    """Add every tensor times a factor (), each on the tensor's device."""
    clipped = []
    for tensor in tensors:
        with graph.device(graph.nodes[tensor.node].device):
            clipped.append(ops.mul(graph, tensor, factor))
    return clipped
