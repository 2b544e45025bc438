"""Ops that hold a graph together: constants, copies, sums of many, dtype changes, and stops for gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes, NotDifferentiable, OpDef, expect, no_flops, register
from runner.engine.ops.common import (
    NO_INPUTS,
    NUMERIC,
    declared_spec,
    expect_dtype,
    expect_same_dtype,
    single_output,
)
from runner.engine.tensor import DTYPES, FLOATS, Tensor, TensorSpec


def identity(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add y = x, any shape and dtype."""
    return graph.add("identity", [x], name=name)[0]


def convert(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add y = x in memory of its own, perhaps in another physical layout; any shape and dtype.

    Put in by passes and by the planner: a copy where an alias would be overwritten, a change of layout.
    """
    return graph.add("convert", [x], name=name)[0]


def stop_gradient(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add y = x through which no gradient flows back."""
    return graph.add("stop_gradient", [x], name=name)[0]


def fill(graph: Graph, value: float, shape: Sequence[int], dtype: str, *, name: str | None = None) -> Tensor:
    """Add a tensor of ``shape`` whose every element is ``value``; integer dtypes take whole values only."""
    return graph.add("fill", (), {"value": value, "shape": tuple(shape), "dtype": dtype}, name=name)[0]


def constant(graph: Graph, value: NDArray[Any], *, name: str | None = None) -> Tensor:
    """Add a tensor that always holds ``value``, an array of one of the engine's dtypes.

    The node carries the elements as little-endian bytes in C order. Meant for small tables, not for data.
    """
    expect(value.dtype.name in DTYPES, "constant", f"an array of dtype {', '.join(DTYPES)}", value.dtype)
    data = value.astype(value.dtype.newbyteorder("<")).tobytes()
    attributes = {"value": data, "shape": value.shape, "dtype": value.dtype.name}
    return graph.add("constant", (), attributes, name=name)[0]


def add_n(graph: Graph, tensors: Sequence[Tensor], *, name: str | None = None) -> Tensor:
    """Add y = ((t0 + t1) + t2) + ...: tensors of one shape and dtype, summed strictly from left to right."""
    return graph.add("add_n", tensors, name=name)[0]


def cast(graph: Graph, x: Tensor, dtype: str, *, name: str | None = None) -> Tensor:
    """Add x converted to ``dtype``; floats become integers by truncation, numbers become bool by x != 0."""
    return graph.add("cast", [x], {"dtype": dtype}, name=name)[0]


def as_dtype(graph: Graph, x: Tensor, dtype: str) -> Tensor:
    """Return x, or add a cast of it where it is not in ``dtype``."""
    return x if graph.spec(x).dtype == dtype else cast(graph, x, dtype)


def truncate_to_bfloat16(graph: Graph, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add the upper 16 bits of each element of x, float32, as bfloat16: cut off, where a cast rounds.

    A cast back to float32 fills in zeros. Sign, exponent and the upper 7 bits of the mantissa are kept, so also zeros
    with their sign, infinities and numbers below the normal ones; a NaN stays a NaN, made quiet.
    """
    return graph.add("truncate_to_bfloat16", [x], name=name)[0]


def _like_input(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    return [specs[0]]


def _pass_on(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [dy]


def _block(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [None]


def _infer_fill(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    dtype, value = attributes["dtype"], attributes["value"]
    allowed = {"bool": value in (0.0, 1.0), "uint8": value.is_integer() and 0 <= value <= 255}
    fits = allowed.get(dtype, dtype in FLOATS or value.is_integer())
    expect(fits, "fill", f"a value that {dtype} can hold", value)
    return [declared_spec("fill", attributes)]


def _infer_constant(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    spec = declared_spec("constant", attributes)
    given = len(attributes["value"])
    expect(given == spec.nbytes, "constant", f"{spec.nbytes} bytes for {spec}", given)
    return [spec]


def _infer_add_n(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    expect_same_dtype("add_n", specs)
    expect_dtype("add_n", specs[0], NUMERIC)
    expect(
        len({spec.shape for spec in specs}) == 1,
        "add_n",
        "inputs of one shape",
        [spec.shape for spec in specs],
    )
    return [specs[0]]


def _infer_cast(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    return [TensorSpec(specs[0].shape, attributes["dtype"])]


def _infer_truncate(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    expect_dtype("truncate_to_bfloat16", specs[0], ("float32",))
    return [TensorSpec(specs[0].shape, "bfloat16")]


def _copy_to_all(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [dy] * len(node.inputs)


def _cast_back(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    source = graph.spec(node.inputs[0])
    return [cast(graph, dy, source.dtype) if source.is_float else None]


def _add_n_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    return (len(inputs) - 1) * outputs[0].size


FOR_TRANSFERS = NotDifferentiable("it is put before transfers by a pass, after gradients exist")

_FILL = {"value": "float", "shape": "ints", "dtype": "dtype"}
_CONSTANT = {"value": "bytes", "shape": "ints", "dtype": "dtype"}

register(OpDef("identity", _like_input, single_output(_pass_on), arity=1, flops=no_flops))
register(OpDef("convert", _like_input, single_output(_pass_on), arity=1, flops=no_flops))
register(OpDef("stop_gradient", _like_input, single_output(_block), arity=1, flops=no_flops))
register(OpDef("fill", _infer_fill, NO_INPUTS, arity=0, attributes=_FILL, flops=no_flops))
register(OpDef("constant", _infer_constant, NO_INPUTS, arity=0, attributes=_CONSTANT, flops=no_flops))
register(OpDef("add_n", _infer_add_n, single_output(_copy_to_all), arity=None, flops=_add_n_flops))
register(OpDef("cast", _infer_cast, single_output(_cast_back), 1, {"dtype": "dtype"}, flops=no_flops))
register(OpDef("truncate_to_bfloat16", _infer_truncate, FOR_TRANSFERS, arity=1, flops=no_flops))
