"""Max and average pooling, and their gradients, each as a sum over the windows that contain a pixel.

Images keep their layout. Sums are added in the order of the reference kernels.
"""

import math
from functools import partial

import numpy as np

from runner.kernels.contract import Attributes, Buffers, Kernel
from runner.kernels.elementwise import computed_in
from runner.kernels.gpu.layouts import CHANNELS_LAST, arrange_alike
from runner.kernels.gpu.runtime import Argument, Runtime, StreamCall, blocks_for, launch, own_kernels
from runner.kernels.gpu.source import text
from runner.kernels.memory import numpy_dtype

OPS = ("max_pool", "max_pool_gradient", "max_pool_gather", "avg_pool", "avg_pool_gradient")

PACK_BYTES = 16
"""The maximum that a thread reads at once."""


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of pooling."""
    return own_kernels(runtime, {op: (arrange_alike, partial(_bind, op)) for op in OPS})


def source(dtype: str, pack: int) -> str:
    """Return the source for images of a dtype, with ``pack`` channels at a time."""
    return f"#define PACK {pack}\n{text('pooling', T=dtype, C=computed_in(dtype))}"


def pack_of(dtype: str, channels: int) -> int:
    """Return how many channels are read at once: 16 bytes if the channels divide into such packs, else 1."""
    full = PACK_BYTES // numpy_dtype(dtype).itemsize
    return full if channels % full == 0 else 1


def _bind(op: str, runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    x_shape = attributes.get("input_shape", buffers.inputs[0].spec.shape)
    y_shape = (buffers.inputs if op.endswith("_gradient") else buffers.outputs)[0].spec.shape
    spec, layout = buffers.outputs[0].spec, buffers.outputs[0].layout
    channels = x_shape[1] if layout.tag == CHANNELS_LAST else 1
    pack = pack_of(spec.dtype, channels)
    count = math.prod(spec.shape) // pack
    arguments = [*buffers.inputs, *buffers.outputs, np.int64(count)]
    arguments += _geometry(attributes, x_shape, y_shape, channels // pack)
    if "count_padding" in attributes:
        arguments.append(np.int32(attributes["count_padding"]))
    return launch(runtime.function(source(spec.dtype, pack), op), blocks_for(runtime, count), arguments)


def _geometry(
    attributes: Attributes, x_shape: tuple[int, ...], y_shape: tuple[int, ...], channels: int
) -> list[Argument]:
    top, _, left, _ = attributes["padding"]
    window, strides = attributes["window"], attributes["strides"]
    return [np.int32(each) for each in (*x_shape[2:], *y_shape[2:], channels, *window, *strides, top, left)]
