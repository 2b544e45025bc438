"""The division of per-channel work among thread blocks, and sums over all axes but the channels."""

import math
from dataclasses import dataclass

import numpy as np

from runner.kernels.contract import Spec
from runner.kernels.elementwise import computed_in
from runner.kernels.gpu.runtime import Argument, Runtime, Size, StreamCall, in_order, launch, power_of_two
from runner.kernels.gpu.source import text
from runner.kernels.memory import numpy_dtype

THREADS = 1024
"""Threads per block; few blocks with many threads leave few partial sums."""

_LINE_BYTES = 128
_LEAST_VALUES = 4
"""The minimum number of values per thread; smaller tensors use fewer blocks."""

_WARP = 32
_READ_AHEAD = 8
"""The number of values that a thread loads before it adds them; adjacent threads load adjacent values."""

_BLOCKS_OF_PIXELS = 8
"""Blocks per multiprocessor if each block has one channel: adding the few partial sums of one channel is cheap."""


@dataclass(frozen=True)
class Division:
    """The division of a tensor (rows, channels, pixels) or (pixels, channels) among blocks; see ``channels.cu``."""

    rows: int
    pixels: int
    channels: int
    lanes: int  # adjacent threads for the pixels of one row or, with channels last, the channels of one pixel
    channels_last: bool
    run: int  # rows per block or, with channels last, pixels per block

    @property
    def width(self) -> int:
        """Channels per block."""
        return self.lanes if self.channels_last else 1

    @property
    def splits(self) -> int:
        """The number of runs into which the pixels (channels last) or the rows (C order) are divided; at least one."""
        return max(1, -(-(self.pixels if self.channels_last else self.rows) // self.run))

    @property
    def partials(self) -> int:
        """The number of partial results: one per split and channel."""
        return self.splits * self.channels

    @property
    def grid(self) -> Size:
        """The grid of launches that compute partial results, and of launches that write every element."""
        return (max(1, -(-self.channels // self.width)), self.splits, 1)

    @property
    def arguments(self) -> list[Argument]:
        """The arguments that ``channels.cu`` declares as SHAPE."""
        return [
            np.int64(self.rows),
            np.int64(self.pixels),
            *(np.int32(each) for each in (self.channels, self.lanes, self.channels_last)),
            np.int64(self.run),
            np.int32(self.splits),
        ]


def division(multiprocessors: int, spec: Spec, channels_last: bool) -> Division:
    """Return the division of a tensor (N, C) or (N, C, H, W). The division depends on the GPU and affects rounding."""
    rows, channels, pixels = spec.shape[0], spec.shape[1], math.prod(spec.shape[2:])
    if channels_last:
        lanes = min(power_of_two(channels), _LINE_BYTES // numpy_dtype(spec.dtype).itemsize)
        splits = max(1, multiprocessors // max(1, -(-channels // lanes)))
        run = _run(rows * pixels, splits, _LEAST_VALUES * THREADS // lanes)
        return Division(1, rows * pixels, channels, lanes, True, run)
    wide = power_of_two(pixels)
    lanes = min(wide, max(_WARP, wide // _READ_AHEAD), THREADS)
    splits = max(1, _BLOCKS_OF_PIXELS * multiprocessors // max(1, channels))
    run = _run(rows, splits, _LEAST_VALUES * THREADS // max(1, pixels))
    return Division(rows, pixels, channels, lanes, False, run)


def _run(count: int, splits: int, least: int) -> int:
    """Return the length of runs, at least ``least``, that divide ``count`` items into at most ``splits`` runs."""
    return max(1, least, -(-count // splits))


def source(dtype: str, result: str | None = None) -> str:
    """Return the CUDA source for a dtype. result: dtype of final sums, by default the dtype of computations."""
    computed = computed_in(dtype)
    return text("channels", T=dtype, C=computed, R=result or computed)


def vector_dtype(dtype: str) -> np.dtype[np.generic]:
    """Return the dtype of per-channel vectors and of partial sums."""
    return np.dtype(computed_in(dtype))


def sums_bytes(multiprocessors: int, x: Spec, channels_last: bool) -> int:
    """Return the bytes of scratch memory that :func:`channel_sums` needs."""
    return division(multiprocessors, x, channels_last).partials * vector_dtype(x.dtype).itemsize


def channel_sums(
    runtime: Runtime, x: Spec, channels_last: bool, address: int, scratch: int, sums: int, result: str
) -> StreamCall:
    """Return the call that writes the channel sums of ``x``, at ``address``, to ``sums``. result: dtype of the sums."""
    cut = division(runtime.multiprocessors, x, channels_last)
    program = source(x.dtype, result)
    steps = (
        ("channel_sums", cut.grid, (address, scratch)),
        ("channel_totals", (cut.grid[0], 1, 1), (scratch, sums)),
    )
    calls = []
    for name, grid, addresses in steps:
        arguments = [*map(np.uintp, addresses), *cut.arguments]
        calls.append(launch(runtime.function(program, name), grid, arguments, threads=THREADS))
    return in_order(calls)
