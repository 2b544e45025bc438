"""Convolutions with 3x3 filters, and both gradients, with a quarter of the multiplications (see ``winograd_tiles``).

Rounding errors are larger than those of direct sums: about a millionth of the results. An infinite pixel can turn all
results of the tiles that read the pixel (up to four) into NaN. An infinite weight can turn all results of its filter
into NaN. Pixels or weights near the largest float32 number can overflow. Images and weights are in oneDNN's blocks of
channels. Gradients of weights and biases depend on the number of threads, because each thread sums a share of the
tiles.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from runner.kernels.contract import (
    Arrangement,
    Attributes,
    Bound,
    Buffers,
    Kernel,
    Layout,
    NativeCall,
    Offers,
    Operand,
    Spec,
    Specs,
    plain,
)
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.compiler import MachineCode, host
from runner.kernels.cpu.machine_code.elementwise import LIBRARY
from runner.kernels.cpu.machine_code.instructions import ITEMSIZE, Lanes
from runner.kernels.cpu.machine_code.winograd_loops import (
    write_convolution,
    write_filter_gradient,
    write_filters,
    write_gradient_results,
)
from runner.kernels.cpu.machine_code.winograd_tiles import DTYPE, POINTS, RESULTS, TAPS
from runner.kernels.memory import address_of, require_scratch
from runner.kernels.registry import Registry

PRIORITY = 25
"""Higher than the priority of the oneDNN kernels."""

FEWEST_CHANNELS = 16
"""Fewest channels for which the kernels were faster than oneDNN's kernels; fewer channels were not measured."""

FEWEST_TILES = 32
"""Fewest tiles per thread. With fewer, the transform of the filters takes longer than the saved multiplications."""

MOST_TILES_PER_RESULT = 2 / RESULTS**2
"""At least half of the results in all tiles that are computed must lie inside the images."""

MOST_SCRATCH_BYTES = 256 << 20
"""Largest scratch memory of a call; oneDNN computes the convolutions that need more."""

BLOCKS = {64: ((14, 2), (8, 2)), 32: ((6, 2), (4, 2))}
"""Vector bytes -> (rows, vectors) that are summed in registers: for images, and for the gradient of weights."""

CHUNK = 2
"""Blocks of tiles in a chunk. A thread transforms, multiplies and stores one chunk at a time. With larger chunks,
filters are read less often, but the scratch memory is larger."""


def register(registry: Registry) -> None:
    """Add the kernels if oneDNN is loaded and the CPU has fused multiply-adds and vectors of 8 or 16 numbers."""
    # oneDNN converts images and weights to blocks.
    can_convert = any(kernel.library == "onednn" for kernel in registry.of("convert", "cpu"))
    if not can_convert or not host().multiplies_and_adds or host().vector_bytes not in BLOCKS:
        return
    for op, arrange, bind in (
        ("conv2d", _arrange_forward, _bind_forward),
        ("conv2d_fused", _arrange_forward, _bind_forward),
        ("conv2d_input_gradient", _arrange_input_gradient, _bind_input_gradient),
        ("conv2d_weight_gradient", _arrange_weight_gradient, _bind_weight_gradient),
        ("conv2d_weight_bias_gradient", _arrange_weight_gradient, _bind_weight_gradient),
    ):
        registry.add(Kernel(op, "cpu", LIBRARY, PRIORITY, frozenset({DTYPE}), arrange, bind))


@dataclass(frozen=True)
class _Convolution:
    """A convolution of stride 1: x (N, C, H, W) -> y (N, K, H', W'), computed by ``workers`` threads.

    padding: before the first row and column.
    """

    x: tuple[int, ...]
    y: tuple[int, ...]
    padding: tuple[int, int]
    workers: int

    @property
    def tile_counts(self) -> tuple[int, int]:
        """Rows and columns of tiles of one image."""
        return -(-self.y[2] // RESULTS), -(-self.y[3] // RESULTS)

    @property
    def tiles(self) -> int:
        """Number of tiles of all images."""
        return self.x[0] * math.prod(self.tile_counts)

    @property
    def share(self) -> int:
        """Largest number of tiles of a worker."""
        return -(-self.tiles // self.workers)

    @property
    def blocks(self) -> int:
        """Largest number of blocks of tiles of a worker."""
        return -(-self.share // _rows())

    @property
    def chunk(self) -> int:
        """Largest number of tiles that a worker processes at a time."""
        return _rows() * min(CHUNK, self.blocks)

    @property
    def is_faster(self) -> bool:
        """Whether there are enough channels and tiles, the channels fill vectors, and the tiles lie in the images."""
        channels, results = (self.x[1], self.y[1]), self.x[0] * math.prod(self.y[2:])
        return (
            min(channels) >= FEWEST_CHANNELS
            and not any(each % _lanes().count for each in channels)
            and self.tiles >= FEWEST_TILES * self.workers
            and self.workers * self.blocks * _rows() <= MOST_TILES_PER_RESULT * results
        )

    @property
    def pairs(self) -> int:
        """Number of pairs of blocks of channels of x and y."""
        return self.x[1] * self.y[1] // _lanes().count ** 2

    @property
    def filters_bytes(self) -> int:
        """Size of all transformed filters."""
        return POINTS**2 * self.x[1] * self.y[1] * ITEMSIZE[DTYPE]

    @property
    def scratch_bytes(self) -> int:
        """Size of the transformed filters, and of a chunk of transformed tiles of x and y for each worker."""
        return self.filters_bytes + self.workers * self._tiles_bytes

    @property
    def gradient_scratch_bytes(self) -> int:
        """Size, for each worker, of its sums for weights and bias and of a chunk of transformed tiles of x and dy."""
        return self.workers * (self.filters_bytes + self.y[1] * ITEMSIZE[DTYPE] + self._tiles_bytes)

    @property
    def _tiles_bytes(self) -> int:
        return POINTS**2 * self.chunk * (self.x[1] + self.y[1]) * ITEMSIZE[DTYPE]

    def sizes(self) -> NDArray[np.int64]:
        """Return the values of ``winograd_tiles.SIZES``."""
        blocks = [channels // _lanes().count for channels in (self.x[1], self.y[1])]
        counts = [*self.tile_counts, self.tiles, self.chunk, self.share, self.workers]
        return np.array([*blocks, *self.x[2:], *self.y[2:], *self.padding, *counts], np.int64)


def _lanes() -> Lanes:
    return Lanes.filling(DTYPE, host().vector_bytes)


def _rows() -> int:
    """Return the number of tiles in a block."""
    return BLOCKS[host().vector_bytes][0][0]


def _convolution(attributes: Attributes, x: Spec, y: Spec, *, is_input_gradient: bool = False) -> _Convolution:
    """Return the convolution x -> y or, for the gradient of x, y -> x, on the present number of threads.

    The gradient of x is a convolution of the gradient of y with the filters rotated by 180 degrees.
    """
    (top, _, left, _), workers = attributes["padding"], threads.thread_count()
    if is_input_gradient:
        return _Convolution(tuple(y.shape), tuple(x.shape), (TAPS - 1 - top, TAPS - 1 - left), workers)
    return _Convolution(tuple(x.shape), tuple(y.shape), (top, left), workers)


def _supported(
    attributes: Attributes, x: Spec, w: Spec, y: Spec, *, is_input_gradient: bool = False
) -> _Convolution | None:
    """Return :func:`_convolution`; None if oneDNN should compute it."""
    dense = attributes["groups"] == 1 and {*attributes["strides"], *attributes["dilations"]} == {1}
    if not dense or tuple(w.shape[2:]) != (TAPS, TAPS):
        return None
    found = _convolution(attributes, x, y, is_input_gradient=is_input_gradient)
    return found if found.is_faster else None


def _image(spec: Spec) -> Layout:
    return Layout(f"aBcd{_lanes().count}b", spec.nbytes)


def _weights(spec: Spec, innermost: str) -> Layout:
    """Return the layout of weights (K, C, 3, 3) in blocks of both axes. innermost: "a" for K or "b" for C."""
    width, other = _lanes().count, "ab".replace(innermost, "")
    return Layout(f"ABcd{width}{other}{width}{innermost}", spec.nbytes)


def _arranged(inputs: Sequence[Layout], outputs: Sequence[Layout], scratch_bytes: int) -> Arrangement | None:
    if scratch_bytes > MOST_SCRATCH_BYTES:
        return None
    return Arrangement(tuple(inputs), tuple(outputs), scratch_bytes)


def _arrange_forward(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    (x, w, *added), (y,) = inputs, outputs
    convolution = _supported(attributes, x, w, y)
    if convolution is None:
        return None
    layouts = [_image(each) if len(each.shape) == len(y.shape) else plain(each) for each in added]
    return _arranged([_image(x), _weights(w, "a"), *layouts], [_image(y)], convolution.scratch_bytes)


def _bind_forward(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    (x, w, *added), (y,) = buffers.inputs, buffers.outputs
    convolution = _convolution(attributes, x.spec, y.spec)
    code = _compiled_convolution(*(bool(attributes.get(name)) for name in ("bias", "residual", "relu")))
    return _convolve(convolution, buffers, [x, w, y, *added], _compiled_filters(False), code)


def _arrange_input_gradient(
    attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers
) -> Arrangement | None:
    (dy, w), (dx,) = inputs, outputs
    convolution = _supported(attributes, dx, w, dy, is_input_gradient=True)
    if convolution is None:
        return None
    return _arranged([_image(dy), _weights(w, "b")], [_image(dx)], convolution.scratch_bytes)


def _bind_input_gradient(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    (dy, w), (dx,) = buffers.inputs, buffers.outputs
    convolution = _convolution(attributes, dx.spec, dy.spec, is_input_gradient=True)
    code = _compiled_convolution(bias=False, residual=False, relu=False)
    return _convolve(convolution, buffers, [dy, w, dx], _compiled_filters(True), code)


def _arrange_weight_gradient(
    attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers
) -> Arrangement | None:
    (dy, x), (dw, *db) = inputs, outputs
    convolution = _supported(attributes, x, dw, dy)
    if convolution is None:
        return None
    results = [_weights(dw, "a"), *map(plain, db)]
    return _arranged([_image(dy), _image(x)], results, convolution.gradient_scratch_bytes)


def _bind_weight_gradient(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    (dy, x), (dw, *db) = buffers.inputs, buffers.outputs
    convolution = _convolution(attributes, x.spec, dy.spec)
    require_scratch(buffers.host_scratch, convolution.gradient_scratch_bytes, convolution.workers)
    scratch, sizes = address_of(buffers.scratch), convolution.sizes()
    addresses = [x.address, dy.address, address_of(_zeros()), scratch, address_of(sizes)]
    results = [scratch, address_of(sizes), dw.address, *(each.address for each in db)]
    keep = (buffers, sizes)
    return [
        _call(_compiled_filter_gradient(bool(db)), addresses, convolution.workers, keep),
        _call(_compiled_gradient_results(bool(db)), results, convolution.pairs, keep),
    ]


def _convolve(
    convolution: _Convolution, buffers: Buffers, tensors: Sequence[Operand], filters: MachineCode, code: MachineCode
) -> list[NativeCall]:
    """Return the calls that transform the filters and compute y. tensors: x, w, y and tensors to add to y."""
    require_scratch(buffers.host_scratch, convolution.scratch_bytes, convolution.workers)
    x, w, y, *added = (tensor.address for tensor in tensors)
    scratch, sizes = address_of(buffers.scratch), convolution.sizes()
    tiles = scratch + convolution.filters_bytes
    keep = (buffers, sizes)
    return [
        _call(filters, [w, scratch, address_of(sizes)], convolution.pairs, keep),
        _call(code, [x, scratch, address_of(_zeros()), tiles, address_of(sizes), y, *added], convolution.workers, keep),
    ]


def _call(code: MachineCode, addresses: Sequence[int], count: int, keep: object) -> NativeCall:
    return threads.call(code, addresses, count, 1, keep, parallel=True)


@cache
def _zeros() -> NDArray[np.float32]:
    """Return the pixel that is read outside of images."""
    return np.zeros(_lanes().count, np.float32)


@cache
def _compiled_convolution(bias: bool, residual: bool, relu: bool) -> MachineCode:
    return MachineCode(write_convolution(_lanes(), *BLOCKS[host().vector_bytes][0], bias, residual, relu))


@cache
def _compiled_filters(is_input_gradient: bool) -> MachineCode:
    return MachineCode(write_filters(_lanes(), is_input_gradient))


@cache
def _compiled_filter_gradient(bias: bool) -> MachineCode:
    return MachineCode(write_filter_gradient(_lanes(), *BLOCKS[host().vector_bytes][1], bias))


@cache
def _compiled_gradient_results(bias: bool) -> MachineCode:
    return MachineCode(write_gradient_results(_lanes(), bias))
