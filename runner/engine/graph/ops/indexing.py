"""Access to rows by index: gather, its adjoint scatter_add, and one-hot encoding."""

from collections.abc import Sequence

from runner.engine.graph.node import Node
from runner.engine.graph.op import Attributes, Builder, NotDifferentiable, OpDef, expect, no_flops, register
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


def one_hot(graph: Builder, indices: Tensor, *, depth: int, dtype: str, name: str | None = None) -> Tensor:
    """Add a node that encodes each index along a new last axis of extent ``depth``: 1 at the index, 0 elsewhere.

    indices: integers within 0..depth-1; other values raise an error when the step runs.
    """
    return graph.add("one_hot", [indices], {"depth": depth, "dtype": dtype}, name=name)[0]


def _infer_gather(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    params, indices = specs
    expect_dtype(indices, INTEGERS, "indices")
    expect(params.rank > 0, "params with at least one dimension", params)
    return [TensorSpec(indices.shape + params.shape[1:], params.dtype)]


def _infer_scatter_add(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    indices, updates = specs
    expect_dtype(indices, INTEGERS, "indices")
    expect_dtype(updates, NUMERIC, "updates")
    expect(attributes["rows"] >= 0, "a number of rows that is not negative", attributes["rows"])
    leading = updates.shape[: indices.rank]
    expect(leading == indices.shape, f"updates for indices {indices}", updates)
    return [TensorSpec((attributes["rows"], *updates.shape[indices.rank :]), updates.dtype)]


def _infer_one_hot(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    (indices,) = specs
    expect_dtype(indices, INTEGERS, "indices")
    expect(attributes["depth"] > 0, "a positive depth", attributes["depth"])
    expect(attributes["dtype"] in FLOATS, "a float dtype", attributes["dtype"])
    return [TensorSpec((*indices.shape, attributes["depth"]), attributes["dtype"])]


@single_output
def _gather_gradient(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    params, indices = node.inputs
    return [scatter_add(graph, indices, dy, rows=graph.spec(params).shape[0]), None]


_ENCODING = {"depth": "int", "dtype": "dtype"}
_FROM_INTEGERS = NotDifferentiable("its input is an integer")

register(
    OpDef("gather", _infer_gather, _gather_gradient, arity=2, flops=no_flops),
    OpDef(
        "scatter_add",
        _infer_scatter_add,
        single_output(lambda graph, node, dy: [None, gather(graph, dy, node.inputs[0])]),
        arity=2,
        attributes={"rows": "int"},
        flops=lambda inputs, outputs, attributes: inputs[1].size,
    ),
    OpDef("one_hot", _infer_one_hot, _FROM_INTEGERS, arity=1, attributes=_ENCODING, flops=no_flops),
)
