"""Gradients of tables that hold few rows: pairs of indices and rows, as the IndexedSlices of TensorFlow.

A network that reads a table only by :meth:`~runner.engine.graph.network.NetworkBuilder.lookup` changes only the rows of
a batch. The gradient of the table is then the sum over i of rows that are zero but for row indices[i], which is
values[i]. Such gradients are added by concatenation, in a fixed order (TensorFlow, OSDI 2016, section 4.2).
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
    """The gradient of a table, of the table's shape and dtype ``whole``: row indices[i] receives values[i].

    indices: (n,) integers, on which values with equal indices are added. values: (n, ...).
    """

    indices: Tensor
    values: Tensor
    whole: TensorSpec


Gradient = Tensor | Rows

Of = TypeVar("Of")


def joined(graph: Graph, parts: Sequence[Rows]) -> Rows:
    """Return the sum of gradients of one table: their rows in the given order."""
    first, *others = parts
    if not others:
        return first
    indices = ops.concat(graph, [part.indices for part in parts], axis=0)
    return Rows(indices, ops.concat(graph, [part.values for part in parts], axis=0), first.whole)


def dense(graph: Graph, gradient: Gradient) -> Tensor:
    """Return a gradient as one tensor. Rows become a tensor of the size of the table, on the device of the rows."""
    if not isinstance(gradient, Rows):
        return gradient
    with graph.device(graph.nodes[gradient.values.node].device):
        return ops.scatter_add(graph, gradient.indices, gradient.values, rows=gradient.whole.shape[0], name="dense")


def all_dense(graph: Graph, gradients: Iterable[tuple[Of, Gradient]]) -> list[tuple[Of, Tensor]]:
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
    """Return a gradient with ``function``, which keeps the number of rows, applied to its tensor or values."""
    if isinstance(gradient, Rows):
        return replace(gradient, values=function(gradient.values))
    return function(gradient)


def tensor_of(gradient: Gradient) -> Tensor:
    """Return the tensor of a gradient, or the values of its rows."""
    return gradient.values if isinstance(gradient, Rows) else gradient
