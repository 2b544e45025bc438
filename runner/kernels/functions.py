"""Kernels that are functions of NumPy arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from runner.kernels.contract import FLOATS, Arrangement, Array, Attributes, Buffers, Kernel, Offers, Specs, all_plain


def function_kernel(
    op: str, function: Callable[..., Any], *, device_type: str = "cpu", library: str = "numpy"
) -> Kernel:
    """Wrap a function of arrays as a kernel. Results are copied into the output buffers; inputs are read-only.

    bfloat16 inputs are converted to float32, and bfloat16 results are rounded once, at the end.
    """

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Callable[[], None]:
        inputs = [_read_only(operand.array) for operand in buffers.inputs]
        outputs = [operand.array for operand in buffers.outputs]

        def call() -> None:
            for output, value in zip(outputs, results(function, inputs, attributes), strict=True):
                _fill(output, value)

        return call

    return Kernel(op, device_type, library, 0, FLOATS, arrange_plain, bind, function)


def update_kernel(op: str, function: Callable[..., None]) -> Kernel:
    """Return a CPU kernel for a function that changes the first array, the output, in place.

    If the output does not share memory with the first input, the input is copied first and is not changed.
    """

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Callable[[], None]:
        source, *others = (_read_only(operand.array) for operand in buffers.inputs)
        target = buffers.outputs[0].array
        in_place = buffers.inputs[0].address == buffers.outputs[0].address

        def call() -> None:
            if not in_place:
                np.copyto(target, source)
            function(target, *others, **attributes)

        return call

    return Kernel(op, "cpu", "numpy", 0, FLOATS, arrange_in_place, bind)


def results(function: Callable[..., Any], inputs: Sequence[Array], attributes: Attributes) -> tuple[Any, ...]:
    """Call the function of a kernel and return all outputs; bfloat16 inputs are converted to float32 first."""
    wide = [each.astype(np.float32) if _is_bfloat16(each) else each for each in inputs]
    result = function(*wide, **attributes)
    return result if isinstance(result, tuple) else (result,)


def _is_bfloat16(array: Array) -> bool:
    # No other dtype of the engine has this kind. The name of a dtype takes a microsecond to compute.
    return array.dtype.kind == "V"


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _fill(output: Array, value: Any) -> None:
    # np.copyto alone would broadcast and convert, which would hide a wrong shape or dtype.
    array = np.asarray(value)
    if _is_bfloat16(output) and array.dtype == np.float32:
        array = array.astype(output.dtype)
    if array.shape != output.shape or array.dtype != output.dtype:
        raise TypeError(
            f"the kernel returned {array.dtype}{list(array.shape)}, expected {output.dtype}{list(output.shape)}"
        )
    np.copyto(output, array)


def arrange_plain(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    """Arrange all tensors in C order and none in place."""
    return all_plain(inputs, outputs)


def arrange_in_place(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    """Arrange all tensors in C order, for a kernel whose first output may share memory with its first input."""
    return all_plain(inputs, outputs, in_place=((0, 0),))
