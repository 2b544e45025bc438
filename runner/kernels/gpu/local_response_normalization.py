"""Local response normalization across channels, its gradient, and sums over windows of channels.

Tensors keep their layout. The gradient takes two launches, so that each power is computed only once.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from runner.kernels.contract import Arrange, Arrangement, Attributes, Buffers, Kernel, Offers, Operand, Spec, Specs
from runner.kernels.gpu.calls import Bind, StreamCall, blocks_for, in_order, launch, own_kernels
from runner.kernels.gpu.layouts import arrange_alike, innermost_channels
from runner.kernels.gpu.runtime import Argument, Runtime
from runner.kernels.gpu.source import computed_in, text
from runner.kernels.memory import address_of, numpy_dtype


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of local response normalization."""
    table: dict[str, tuple[Arrange, Bind]] = {
        "channel_window_sum": (arrange_alike, _bind_window_sum),
        "local_response_normalization": (arrange_alike, _bind_forward),
        "local_response_normalization_gradient": (_arrange_gradient, _bind_gradient),
    }
    return own_kernels(runtime, table)


def source(dtype: str) -> str:
    """Return the source for tensors of a dtype."""
    return text("local_response_normalization", T=dtype, C=computed_in(dtype))


def _arrange_gradient(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    alike = arrange_alike(attributes, inputs, outputs, offered)
    return replace(alike, scratch_bytes=2 * _bytes_of_part(inputs[0]))


def _bytes_of_part(x: Spec) -> int:
    """Return the bytes of a tensor like x in the dtype of the computation."""
    return math.prod(x.shape) * numpy_dtype(computed_in(x.dtype)).itemsize


def _bind_window_sum(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    x, y = buffers.inputs[0], buffers.outputs[0]
    return _launch(runtime, "channel_window_sum", x, attributes["size"], (x.address, y.address))


def _bind_forward(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    x, y = buffers.inputs[0], buffers.outputs[0]
    numbers = (_weight(attributes), attributes["k"], -attributes["beta"])
    addresses = (x.address, y.address)
    return _launch(runtime, "local_response_normalization", x, attributes["size"], addresses, numbers)


def _bind_gradient(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x, dy), dx = buffers.inputs, buffers.outputs[0]
    scaled = address_of(buffers.scratch)
    ratio = scaled + _bytes_of_part(x.spec)
    size, weight, beta = attributes["size"], _weight(attributes), attributes["beta"]
    made = (x.address, dy.address, scaled, ratio)
    taken = (x.address, scaled, ratio, dx.address)
    return in_order(
        [
            _launch(runtime, "response_gradient_parts", x, size, made, (weight, attributes["k"], -beta)),
            _launch(runtime, "response_gradient", x, size, taken, (2 * weight * beta,)),
        ]
    )


def _launch(
    runtime: Runtime, name: str, x: Operand, size: int, addresses: Sequence[int], numbers: Sequence[float] = ()
) -> StreamCall:
    """Return one launch over all elements of x. numbers: further arguments, in the dtype of the computation."""
    computed = numpy_dtype(computed_in(x.spec.dtype)).type
    arguments: list[Argument] = [*map(np.uintp, addresses), *_shape(x, size), *map(computed, numbers)]
    function = runtime.function(source(x.spec.dtype), name)
    return launch(function, blocks_for(runtime, math.prod(x.spec.shape)), arguments)


def _shape(x: Operand, size: int) -> list[Argument]:
    """Return the arguments that the source calls SHAPE."""
    shape = x.spec.shape
    inner = 1 if innermost_channels(x.spec, x.layout) else math.prod(shape[2:])
    return [np.int64(each) for each in (math.prod(shape), inner, shape[1], size // 2)]


def _weight(attributes: Attributes) -> float:
    """Return the factor of the sum of squares."""
    alpha: float = attributes["alpha"]
    return alpha / attributes["size"] if attributes["divide_by_size"] else alpha
