"""Kernels that are functions of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from runner.kernels.contract import (
    FLOATS,
    Arrangement,
    Array,
    Attributes,
    Bound,
    Buffers,
    Kernel,
    Layout,
    Spec,
    plain,
)


def function_kernel(
    op: str, function: Callable[..., Any], *, device_type: str = "cpu", library: str = "numpy"
) -> Kernel:
    """The kernel that a function of arrays is: results are copied to where they belong; inputs cannot be written.

    bfloat16 is computed in float32 and rounded once, at the end.
    """

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
        inputs = [_read_only(operand.array) for operand in buffers.inputs]
        outputs = [operand.array for operand in buffers.outputs]
        compute = partial(_in_float32 if _has_bfloat16(inputs) else _directly, function, inputs, attributes)

        def call() -> None:
            result = compute()
            several = result if isinstance(result, tuple) else (result,)
            for output, value in zip(outputs, several, strict=True):
                _fill(output, value)

        return call

    return Kernel(op, device_type, library, 0, FLOATS, arrange_plain, bind)


def _directly(function: Callable[..., Any], inputs: Sequence[Array], attributes: Attributes) -> Any:
    return function(*inputs, **attributes)


def _in_float32(function: Callable[..., Any], inputs: Sequence[Array], attributes: Attributes) -> Any:
    wide = [each.astype(np.float32) if each.dtype.name == "bfloat16" else each for each in inputs]
    return function(*wide, **attributes)


def _has_bfloat16(inputs: Sequence[Array]) -> bool:
    return any(each.dtype.name == "bfloat16" for each in inputs)


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _fill(output: Array, value: Any) -> None:
    # copyto would broadcast and convert; a kernel that computes another shape or dtype than its op says is wrong.
    array = np.asarray(value)
    if output.dtype.name == "bfloat16" and array.dtype == np.float32:
        array = array.astype(output.dtype)
    if array.shape != output.shape or array.dtype != output.dtype:
        raise TypeError(
            f"the kernel gave {array.dtype}{list(array.shape)}, expected {output.dtype}{list(output.shape)}"
        )
    np.copyto(output, array)


def arrange_plain(
    attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
) -> Arrangement:
    """Everything in C order, nothing in place: what a NumPy function wants."""
    return Arrangement(tuple(map(plain, inputs)), tuple(map(plain, outputs)))
