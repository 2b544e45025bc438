"""Max pooling in one pass over the image. Unlike in oneDNN, the maximum of a window with NaN is NaN.

Images are plain, channels last, or in oneDNN's blocks of channels; results have the layout of the images.
"""

import math
import re
from functools import cache

import numpy as np

from runner.kernels.contract import Arrangement, Attributes, Bound, Buffers, Kernel, Layout, Offers, Spec, Specs, plain
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.compiler import MachineCode, host
from runner.kernels.cpu.machine_code.elements import ITEMSIZE
from runner.kernels.cpu.machine_code.elementwise import LIBRARY
from runner.kernels.cpu.machine_code.pooling_code import Pooling, write_module
from runner.kernels.registry import Registry

PRIORITY = 25
"""Above the priority of oneDNN."""

DTYPES = frozenset({"float32", "bfloat16"})

_BLOCKS = re.compile(r"aBcd(8|16)b", re.ASCII)
_CHANNELS_LAST = "acdb"
_SMALL_WINDOW = 255
"""Window sizes up to which oneDNN stores positions in bytes if images are not plain."""


def register(registry: Registry) -> None:
    """Add the kernel of op ``max_pool``."""
    registry.add(Kernel("max_pool", "cpu", LIBRARY, PRIORITY, DTYPES, _arrange, _bind))


def _arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    (x,), (y, argmax), (given,) = inputs, outputs, offered
    layout = given or plain(x)
    if not x.nbytes or not y.nbytes or not _is_known(layout):
        return None
    if layout.is_plain:
        return Arrangement((layout,), (plain(y), plain(argmax)))
    count = _columns(layout, x) * math.prod(y.shape[2:])
    small = math.prod(attributes["window"]) <= _SMALL_WINDOW
    positions = Layout(f"u8:{layout.tag}", count) if small else Layout(layout.tag, count * 4)
    return Arrangement((layout,), (Layout(layout.tag, count * ITEMSIZE[x.dtype]), positions))


def _is_known(layout: Layout) -> bool:
    return layout.is_plain or layout.tag == _CHANNELS_LAST or bool(_BLOCKS.fullmatch(layout.tag))


def _columns(layout: Layout, x: Spec) -> int:
    """Numbers of all examples at one pixel, padding of blocks included."""
    return layout.nbytes // (ITEMSIZE[x.dtype] * math.prod(x.shape[2:]))


def _inner(layout: Layout, x: Spec) -> int:
    """Adjacent numbers in memory that belong to one pixel."""
    blocks = _BLOCKS.fullmatch(layout.tag)
    if blocks:
        return int(blocks[1])
    return x.shape[1] if layout.tag == _CHANNELS_LAST else 1


def _bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    (x,), (y, argmax) = buffers.inputs, buffers.outputs
    inner, rows = _inner(x.layout, x.spec), y.spec.shape[2]
    tiles = _columns(x.layout, x.spec) // inner
    window, strides, padding = (tuple(attributes[key]) for key in ("window", "strides", "padding"))
    in_bytes = argmax.layout.tag.startswith("u8:")
    pooling = Pooling(x.spec.dtype, window, strides, padding, inner, _lanes(inner), in_bytes)
    sizes = np.array([*x.spec.shape[2:], *y.spec.shape[2:]], np.int64)
    return threads.over(_compiled(pooling), (x, y, argmax), tiles * rows, 1, sizes)


def _lanes(inner: int) -> int:
    """Numbers computed together, at most one vector."""
    most = host().vector_bytes // ITEMSIZE["float32"]
    return min(most, 1 << (inner.bit_length() - 1))


@cache
def _compiled(pooling: Pooling) -> MachineCode:
    return MachineCode(write_module(pooling))
