"""Access to rows by index: gather, its adjoint scatter_add, updates of single rows, and one-hot encoding.

``add_equal_rows`` and ``put_rows`` update a few rows of a large table without work on its other rows.
"""

from collections.abc import Sequence

from runner.engine.graph.node import Node
from runner.engine.graph.op import Builder, NotDifferentiable, OpDef, Specs, expect, no_flops, register
from runner.engine.graph.ops.common import INTEGERS, NUMERIC, expect_dtype, single_output
from runner.engine.graph.tensor import FLOATS, Tensor, TensorSpec


def gather(graph: Builder, params: Tensor, indices: Tensor, *, name: str | None = None) -> Tensor:
    """Add a node for params[indices] along axis 0.

    params: (R, ...); indices: integers of shape I within 0..R-1, else the step raises an error; output: I + (...).
    """
    return graph.add("gather", [params, indices], name=name)[0]


def scatter_add(graph: Builder, indices: Tensor, updates: Tensor, *, rows: int, name: str | None = None) -> Tensor:
    """Add a node for a tensor (rows, ...) whose row r is the sum of all updates with index r: the adjoint of gather.

    indices: integers of shape I within 0..rows-1; updates: I + (...). Updates of the same row are added in their order.
    """
    return graph.add("scatter_add", [indices, updates], {"rows": rows}, name=name)[0]


def add_equal_rows(
    graph: Builder, indices: Tensor, updates: Tensor, *, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Add a node that sums, at each position, all updates with the index of this position, and marks first positions.

    indices: (n,) integers; updates: (n, ...) floats. Outputs: sums (n, ...), in which positions with equal indices have
    equal rows; and first (n,), of the updates' dtype, which is 1 at the first position of each index and 0 elsewhere.
    Updates with the same index are added in their order, as by ``scatter_add``, but no table is needed.
    """
    node = graph.add("add_equal_rows", [indices, updates], name=name)
    return node[0], node[1]


def put_rows(graph: Builder, table: Tensor, indices: Tensor, rows: Tensor, *, name: str | None = None) -> Tensor:
    """Add a node for ``table`` (R, ...) with rows[i] in place of the row indices[i]; the other rows do not change.

    indices: (n,) integers within 0..R-1; rows: (n, ...). Positions with equal indices must have equal rows. If
    the output is assigned to the variable ``table`` and can share its memory, only these rows are written.
    """
    return graph.add("put_rows", [table, indices, rows], name=name, colocate_with=[table.node])[0]


def one_hot(graph: Builder, indices: Tensor, *, depth: int, dtype: str, name: str | None = None) -> Tensor:
    """Add a node that encodes each index along a new last axis of extent ``depth``: 1 at the index, 0 elsewhere.

    indices: integers within 0..depth-1; other values raise an error when the step runs.
    """
    return graph.add("one_hot", [indices], {"depth": depth, "dtype": dtype}, name=name)[0]


def _infer_gather(params: TensorSpec, indices: TensorSpec) -> Specs:
    expect_dtype(indices, INTEGERS, "indices")
    expect(params.rank > 0, "params with at least one dimension", params)
    return [TensorSpec(indices.shape + params.shape[1:], params.dtype)]


def _infer_scatter_add(indices: TensorSpec, updates: TensorSpec, *, rows: int) -> Specs:
    expect_dtype(indices, INTEGERS, "indices")
    expect_dtype(updates, NUMERIC, "updates")
    expect(rows >= 0, "a number of rows that is not negative", rows)
    leading = updates.shape[: indices.rank]
    expect(leading == indices.shape, f"updates for indices {indices}", updates)
    return [TensorSpec((rows, *updates.shape[indices.rank :]), updates.dtype)]


def _infer_add_equal_rows(indices: TensorSpec, updates: TensorSpec) -> Specs:
    expect_dtype(indices, INTEGERS, "indices")
    expect_dtype(updates, FLOATS, "updates")
    _expect_a_row_for_each(indices, updates)
    return [updates, TensorSpec(indices.shape, updates.dtype)]


def _infer_put_rows(table: TensorSpec, indices: TensorSpec, rows: TensorSpec) -> Specs:
    expect_dtype(indices, INTEGERS, "indices")
    expect(table.rank > 0, "a table with at least one dimension", table)
    _expect_a_row_for_each(indices, rows)
    expect(rows.shape[1:] == table.shape[1:] and rows.dtype == table.dtype, f"rows of the table {table}", rows)
    return [table]


def _expect_a_row_for_each(indices: TensorSpec, rows: TensorSpec) -> None:
    expect(indices.rank == 1, "indices with one dimension", indices)
    expect(rows.shape[:1] == indices.shape, f"a row for each of the indices {indices}", rows)


def _infer_one_hot(indices: TensorSpec, *, depth: int, dtype: str) -> Specs:
    expect_dtype(indices, INTEGERS, "indices")
    expect(depth > 0, "a positive depth", depth)
    expect(dtype in FLOATS, "a float dtype", dtype)
    return [TensorSpec((*indices.shape, depth), dtype)]


@single_output
def _gather_gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    params, indices = node.inputs
    return [scatter_add(graph, indices, dy, rows=graph.spec(params).shape[0]), None]


@single_output
def _scatter_gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [None, gather(graph, dy, node.inputs[0])]


def _sums_gradient(graph: Builder, node: Node, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    dy = gradients[0]
    # The sums are a symmetric linear function of the updates; the first positions depend on the indices alone.
    return [None, None if dy is None else add_equal_rows(graph, node.inputs[0], dy)[0]]


def _gathered_bytes(inputs: Specs, outputs: Specs) -> int:
    """Return the bytes of the indices plus twice the bytes of the selected rows, which are read and written."""
    return inputs[1].nbytes + 2 * outputs[0].nbytes


def _put_bytes(inputs: Specs, outputs: Specs) -> int:
    """Return the bytes of the indices plus twice the bytes of the new rows, which are read and written to the table."""
    return inputs[1].nbytes + 2 * inputs[2].nbytes


_ENCODING = {"depth": "int", "dtype": "dtype"}
_AN_UPDATE = NotDifferentiable("it updates a variable; differentiate the new rows instead")
_FROM_INTEGERS = NotDifferentiable("its input is an integer")

register(
    OpDef("gather", _infer_gather, _gather_gradient, arity=2, flops=no_flops, moved=_gathered_bytes),
    OpDef("scatter_add", _infer_scatter_add, _scatter_gradient, 2, {"rows": "int"}, lambda inputs, *_: inputs[1].size),
    OpDef("add_equal_rows", _infer_add_equal_rows, _sums_gradient, arity=2),
    OpDef("put_rows", _infer_put_rows, _AN_UPDATE, arity=3, flops=no_flops, moved=_put_bytes),
    OpDef("one_hot", _infer_one_hot, _FROM_INTEGERS, arity=1, attributes=_ENCODING, flops=no_flops),
)
