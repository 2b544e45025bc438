"""Gradients of tables as pairs of indices and rows, like the IndexedSlices of TensorFlow.

If a network reads a table only by :meth:`~runner.engine.graph.network.NetworkBuilder.lookup`, the gradient of the table
is zero except in the rows that the batch reads. Such a gradient is stored as indices and values: values[i] is added to
row indices[i]. Two such gradients are summed by concatenation, in a fixed order (TensorFlow, OSDI 2016, section 4.2).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor, TensorSpec


@dataclass(frozen=True)
class Rows:
    """The gradient of a table: values[i] is added to row indices[i], and all other rows are zero.

    indices: (n,) integers; equal indices are allowed. values: (n, ...). whole: shape and dtype of the table.
    """

    indices: Tensor
    values: Tensor
    whole: TensorSpec


Gradient = Tensor | Rows

T = TypeVar("T")


def joined(graph: Graph, parts: Sequence[Rows]) -> Rows:
    """Return the sum of gradients of one table, by concatenation in the given order."""
    first, *others = parts
    if not others:
        return first
    indices = ops.concat(graph, [part.indices for part in parts], axis=0)
    return Rows(indices, ops.concat(graph, [part.values for part in parts], axis=0), first.whole)


def dense(graph: Graph, gradient: Gradient) -> Tensor:
    """Return a gradient as one tensor of the table's shape. Rows are added up on the device that holds them."""
    if not isinstance(gradient, Rows):
        return gradient
    with graph.device(graph.nodes[gradient.values.node].device):
        return ops.scatter_add(graph, gradient.indices, gradient.values, rows=gradient.whole.shape[0], name="dense")


def all_dense(graph: Graph, gradients: Iterable[tuple[T, Gradient]]) -> list[tuple[T, Tensor]]:
    """Return pairs of variable and gradient in which each gradient is one tensor; see :func:`dense`."""
    return [(variable, dense(graph, gradient)) for variable, gradient in gradients]


def spec_of(graph: Graph, gradient: Gradient) -> TensorSpec:
    """Return the shape and dtype of a gradient. Raises ShapeError if rows do not fit their table."""
    if not isinstance(gradient, Rows):
        return graph.spec(gradient)
    values, whole = graph.spec(gradient.values), gradient.whole
    if values.shape[1:] != whole.shape[1:] or values.dtype != whole.dtype:
        raise ShapeError(f"rows {gradient.values} are {values}; expected rows of a table {whole}")
    return whole


def mapped(gradient: Gradient, function: Callable[[Tensor], Tensor]) -> Gradient:
    """Apply ``function``, which must keep the number of rows, to the tensor or to the values of a gradient."""
    if isinstance(gradient, Rows):
        return replace(gradient, values=function(gradient.values))
    return function(gradient)


def tensor_of(gradient: Gradient) -> Tensor:
    """Return the tensor of a gradient, or the values of its rows."""
    return gradient.values if isinstance(gradient, Rows) else gradient
