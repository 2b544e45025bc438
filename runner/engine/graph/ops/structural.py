"""Structural ops: constants, copies, sums of many tensors, casts, and ops that stop gradients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.graph.node import Node
from runner.engine.graph.op import Builder, NotDifferentiable, OpDef, ShapeError, Specs, expect, no_flops, register
from runner.engine.graph.ops.common import (
    NO_INPUTS,
    copy_to_all,
    declared_spec,
    expect_dtype,
    expect_terms,
    single_output,
    sum_flops,
    unary,
)
from runner.engine.graph.tensor import DTYPES, FLOATS, Tensor, TensorSpec

identity = unary(
    "identity", "Add a node for y = x, of any shape and dtype.", lambda dy, y, x: dy, DTYPES, flops=no_flops
)
convert = unary(
    "convert",
    """Add a node that copies x, of any shape and dtype, to separate memory, in the same or another layout.

    Passes and the planner insert this op to copy a value before its memory is overwritten, or to change its layout.
    """,
    lambda dy, y, x: dy,
    DTYPES,
    flops=no_flops,
)
stop_gradient = unary(
    "stop_gradient",
    "Add a node for y = x, through which no gradient flows back.",
    lambda dy, y, x: None,
    DTYPES,
    flops=no_flops,
)


def fill(graph: Builder, value: float, shape: Sequence[int], dtype: str, *, name: str | None = None) -> Tensor:
    """Add a tensor of ``shape`` in which every element is ``value``; integer dtypes require a whole number."""
    return graph.add("fill", (), {"value": value, "shape": tuple(shape), "dtype": dtype}, name=name)[0]


def constant(graph: Builder, value: NDArray[Any], *, name: str | None = None) -> Tensor:
    """Add a tensor that always holds ``value``, an array of one of the engine's dtypes.

    The node stores the elements as little-endian bytes in C order. The op is meant for small tables, not for data sets.
    """
    if value.dtype.name not in DTYPES:
        raise ShapeError(f"op 'constant': expected an array of dtype {', '.join(DTYPES)}, got {value.dtype}")
    data = value.astype(value.dtype.newbyteorder("<")).tobytes()
    attributes = {"value": data, "shape": value.shape, "dtype": value.dtype.name}
    return graph.add("constant", (), attributes, name=name)[0]


def add_n(graph: Builder, tensors: Sequence[Tensor], *, name: str | None = None) -> Tensor:
    """Add a node that sums tensors of one shape and dtype, strictly from left to right: ((t0 + t1) + t2) + ..."""
    return graph.add("add_n", tensors, name=name)[0]


def cast(graph: Builder, x: Tensor, dtype: str, *, name: str | None = None) -> Tensor:
    """Add a node that converts x to ``dtype``; casts from float to integer truncate, and casts to bool yield x != 0."""
    return graph.add("cast", [x], {"dtype": dtype}, name=name)[0]


def as_dtype(graph: Builder, x: Tensor, dtype: str) -> Tensor:
    """Return x if its dtype is ``dtype``; otherwise add a cast of x."""
    return x if graph.spec(x).dtype == dtype else cast(graph, x, dtype)


def truncate_to_bfloat16(graph: Builder, x: Tensor, *, name: str | None = None) -> Tensor:
    """Add a node that keeps the upper 16 bits of each float32 element, as bfloat16. This op truncates; a cast rounds.

    A cast back to float32 appends zero bits. Sign, exponent and the upper 7 bits of the mantissa are kept, even for
    subnormal numbers. Signed zeros and infinities do not change, and a NaN becomes a quiet NaN.
    """
    return graph.add("truncate_to_bfloat16", [x], name=name)[0]


def _infer_fill(*, value: float, shape: tuple[int, ...], dtype: str) -> Specs:
    if dtype not in FLOATS:
        low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        expect(value.is_integer() and low <= value <= high, f"a value that {dtype} can hold", value)
    return [declared_spec(shape, dtype)]


def _infer_constant(*, value: bytes, shape: tuple[int, ...], dtype: str) -> Specs:
    spec = declared_spec(shape, dtype)
    expect(len(value) == spec.nbytes, f"{spec.nbytes} bytes for {spec}", len(value))
    return [spec]


def _infer_add_n(*specs: TensorSpec) -> Specs:
    expect_terms(specs, "inputs")
    return [specs[0]]


def _infer_truncate(x: TensorSpec) -> Specs:
    expect_dtype(x, ("float32",))
    return [TensorSpec(x.shape, "bfloat16")]


@single_output
def _cast_back(graph: Builder, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    source = graph.spec(node.inputs[0])
    return [cast(graph, dy, source.dtype) if source.is_float else None]


FOR_TRANSFERS = NotDifferentiable("passes add this op before transfers, after differentiation")

_FILL = {"value": "float", "shape": "ints", "dtype": "dtype"}
_CONSTANT = {"value": "bytes", "shape": "ints", "dtype": "dtype"}

register(
    OpDef("fill", _infer_fill, NO_INPUTS, arity=0, attributes=_FILL, flops=no_flops),
    OpDef("constant", _infer_constant, NO_INPUTS, arity=0, attributes=_CONSTANT, flops=no_flops),
    OpDef("add_n", _infer_add_n, single_output(copy_to_all), arity=None, flops=sum_flops),
    OpDef("cast", lambda x, dtype: [TensorSpec(x.shape, dtype)], _cast_back, 1, {"dtype": "dtype"}, no_flops),
    OpDef("truncate_to_bfloat16", _infer_truncate, FOR_TRANSFERS, arity=1, flops=no_flops),
)
