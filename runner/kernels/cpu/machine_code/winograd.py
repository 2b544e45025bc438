"""Convolutions with 3x3 filters, and both gradients, with a quarter of the multiplications (see ``winograd_tiles``).

The rounding errors of float32 results are about three times those of oneDNN's direct sums. An infinite pixel makes its
whole tile NaN. Images and weights are in oneDNN's blocks of channels. Only the gradient of the weights depends on the
number of threads, because each thread sums a share of the tiles.
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
    write_interpolation,
)
from runner.kernels.cpu.machine_code.winograd_tiles import DTYPE, POINTS, RESULTS, TAPS
from runner.kernels.memory import address_of
from runner.kernels.registry import Registry

PRIORITY = 25
"""Higher than the priority of the oneDNN kernels."""

FEWEST_CHANNELS = 16
"""With fewer channels, evaluation and interpolation take longer than the multiplications that they save."""

FEWEST_TILES = 32
"""With fewer tiles, evaluating the filters takes longer than the multiplications that are saved."""

MOST_TILES_PER_RESULT = 2 / RESULTS**2
"""Of all tiles together, at least half must lie inside the images."""

MOST_SUMS_BYTES = 256 << 20
"""Largest total size of the sums of a gradient of weights; each thread has its own sums."""

BLOCKS = {64: ((14, 2), (8, 2)), 32: ((6, 2), (4, 2))}
"""Vector bytes -> (rows, vectors) that are summed in registers: for images, and for the gradient of weights."""

CHUNK = 2
"""Tiles that a thread processes at a time, in rows of a block; their values stay in the second-level cache."""


def register(registry: Registry) -> None:
    """Add the kernels if the CPU has a fused multiply-add instruction and vectors of 8 or 16 numbers."""
    if not host().multiplies_and_adds or host().vector_bytes not in BLOCKS:
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
    """A convolution of stride 1: x (N, C, H, W) -> y (N, K, H', W'). padding: before the first row and column."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    padding: tuple[int, int]

    @property
    def tile_counts(self) -> tuple[int, int]:
        """Rows and columns of tiles of one image."""
        return -(-self.y[2] // RESULTS), -(-self.y[3] // RESULTS)

    @property
    def tiles(self) -> int:
        """Number of tiles of all images."""
        return self.x[0] * math.prod(self.tile_counts)

    @property
    def is_faster(self) -> bool:
        """Whether there are enough channels and tiles, the channels fill vectors, and the tiles lie in the images."""
        channels, results = (self.x[1], self.y[1]), self.x[0] * math.prod(self.y[2:])
        return (
            min(channels) >= FEWEST_CHANNELS
            and not any(each % _lanes().count for each in channels)
            and FEWEST_TILES <= self.tiles <= MOST_TILES_PER_RESULT * results
        )

    @property
    def pairs(self) -> int:
        """Number of pairs of blocks of channels of x and y."""
        return self.x[1] * self.y[1] // _lanes().count ** 2

    @property
    def filters_bytes(self) -> int:
        """Size of all filters at points."""
        return POINTS**2 * self.x[1] * self.y[1] * ITEMSIZE[DTYPE]

    @property
    def tiles_bytes(self) -> int:
        """Size of a thread's tiles of x and y at points."""
        return POINTS**2 * _chunk() * (self.x[1] + self.y[1]) * ITEMSIZE[DTYPE]

    @property
    def sums_bytes(self) -> int:
        """Size of a thread's sums for the gradients of weights and bias."""
        return self.filters_bytes + self.y[1] * ITEMSIZE[DTYPE]

    def sizes(self) -> NDArray[np.int64]:
        """Return the values of ``winograd_tiles.SIZES``."""
        blocks = [channels // _lanes().count for channels in (self.x[1], self.y[1])]
        share = -(-self.tiles // threads.count())
        sizes = [*blocks, *self.x[2:], *self.y[2:], *self.padding, *self.tile_counts, self.tiles, _chunk(), share]
        return np.array(sizes, np.int64)


def _lanes() -> Lanes:
    return Lanes.filling(DTYPE, host().vector_bytes)


def _chunk() -> int:
    return CHUNK * BLOCKS[host().vector_bytes][0][0]


def _convolution(attributes: Attributes, x: Spec, w: Spec, y: Spec, *, turned: bool = False) -> _Convolution | None:
    """Return the convolution x, w -> y or, turned, y, w -> x; None if its kind is not supported or it is not faster.

    The gradient of x is a convolution of the gradient of y with the filters turned by 180 degrees.
    """
    dense = attributes["groups"] == 1 and {*attributes["strides"], *attributes["dilations"]} == {1}
    if {x.dtype, w.dtype, y.dtype} != {DTYPE} or not dense or tuple(w.shape[2:]) != (TAPS, TAPS):
        return None
    top, _, left, _ = attributes["padding"]
    found = _Convolution(tuple(x.shape), tuple(y.shape), (top, left))
    if turned:
        found = _Convolution(found.y, found.x, (TAPS - 1 - top, TAPS - 1 - left))
    return found if found.is_faster else None


def _image(spec: Spec) -> Layout:
    return Layout(f"aBcd{_lanes().count}b", spec.nbytes)


def _weights(spec: Spec, innermost: str) -> Layout:
    """Return the layout of weights (K, C, 3, 3) in blocks of both axes. innermost: "a" for K or "b" for C."""
    width, other = _lanes().count, "ab".replace(innermost, "")
    return Layout(f"ABcd{width}{other}{width}{innermost}", spec.nbytes)


def _arrange_forward(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    (x, w, *added), (y,) = inputs, outputs
    found = _convolution(attributes, x, w, y)
    if found is None:
        return None
    layouts = [_image(each) if len(each.shape) == len(y.shape) else plain(each) for each in added]
    return Arrangement((_image(x), _weights(w, "a"), *layouts), (_image(y),), _scratch_bytes(found))


def _bind_forward(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    (x, w, *added), (y,) = buffers.inputs, buffers.outputs
    found = _convolution(attributes, x.spec, w.spec, y.spec)
    code = _compiled_convolution(*(bool(attributes.get(name)) for name in ("bias", "residual", "relu")))
    return _convolve(found, buffers, [x, w, y, *added], _compiled_filters(turned=False), code)


def _arrange_input_gradient(
    attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers
) -> Arrangement | None:
    (dy, w), (dx,) = inputs, outputs
    found = _convolution(attributes, dx, w, dy, turned=True)
    if found is None:
        return None
    return Arrangement((_image(dy), _weights(w, "b")), (_image(dx),), _scratch_bytes(found))


def _bind_input_gradient(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    (dy, w), (dx,) = buffers.inputs, buffers.outputs
    found = _convolution(attributes, dx.spec, w.spec, dy.spec, turned=True)
    code = _compiled_convolution(bias=False, residual=False, relu=False)
    return _convolve(found, buffers, [dy, w, dx], _compiled_filters(turned=True), code)


def _arrange_weight_gradient(
    attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers
) -> Arrangement | None:
    (dy, x), (dw, *db) = inputs, outputs
    found = _convolution(attributes, x, dw, dy)
    if found is None or threads.count() * found.sums_bytes > MOST_SUMS_BYTES:
        return None
    return Arrangement((_image(dy), _image(x)), (_weights(dw, "a"), *map(plain, db)), _gradient_scratch_bytes(found))


def _bind_weight_gradient(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    (dy, x), (dw, *db) = buffers.inputs, buffers.outputs
    found = _convolution(attributes, x.spec, dw.spec, dy.spec)
    assert found is not None  # arranged for these shapes
    scratch = _checked(buffers, _gradient_scratch_bytes(found))
    sizes = found.sizes()
    places = [x.address, dy.address, address_of(_zeros()), scratch, address_of(sizes)]
    results = [scratch, address_of(sizes), dw.address, *(each.address for each in db)]
    keep = (buffers, sizes)
    return [
        _call(_compiled_filter_gradient(bool(db)), places, threads.count(), keep),
        _call(_compiled_interpolation(threads.count(), bool(db)), results, found.pairs, keep),
    ]


def _scratch_bytes(found: _Convolution) -> int:
    return found.filters_bytes + threads.count() * found.tiles_bytes


def _gradient_scratch_bytes(found: _Convolution) -> int:
    return threads.count() * (found.sums_bytes + found.tiles_bytes)


def _convolve(
    found: _Convolution | None, buffers: Buffers, tensors: Sequence[Operand], evaluation: MachineCode, code: MachineCode
) -> list[NativeCall]:
    """Return the calls that evaluate the filters and compute the result. tensors: x, w, y and what is added to y."""
    assert found is not None  # arranged for these shapes
    x, w, y, *added = (tensor.address for tensor in tensors)
    filters, sizes = _checked(buffers, _scratch_bytes(found)), found.sizes()
    places = [x, filters, address_of(_zeros()), filters + found.filters_bytes, address_of(sizes), y, *added]
    keep = (buffers, sizes)
    return [
        _call(evaluation, [w, filters, address_of(sizes)], found.pairs, keep),
        _call(code, places, threads.count(), keep),
    ]


def _checked(buffers: Buffers, needed: int) -> int:
    """Return the address of the scratch memory; raises ValueError if it has fewer than ``needed`` bytes."""
    if buffers.host_scratch.nbytes < needed:
        raise ValueError(
            f"a convolution with {threads.count()} threads needs {needed} bytes of scratch memory, got "
            f"{buffers.host_scratch.nbytes}: planned for another thread count; plan and bind with the same thread count"
        )
    return address_of(buffers.scratch)


def _call(code: MachineCode, places: Sequence[int], count: int, keep: object) -> NativeCall:
    return threads.call(code, places, count, 1, keep, parallel=True)


@cache
def _zeros() -> NDArray[np.float32]:
    """Return the pixel that is read outside of images."""
    return np.zeros(_lanes().count, np.float32)


@cache
def _compiled_convolution(bias: bool, residual: bool, relu: bool) -> MachineCode:
    return MachineCode(write_convolution(_lanes(), *BLOCKS[host().vector_bytes][0], bias, residual, relu))


@cache
def _compiled_filters(turned: bool) -> MachineCode:
    return MachineCode(write_filters(_lanes(), turned))


@cache
def _compiled_filter_gradient(bias: bool) -> MachineCode:
    return MachineCode(write_filter_gradient(_lanes(), *BLOCKS[host().vector_bytes][1], bias))


@cache
def _compiled_interpolation(workers: int, bias: bool) -> MachineCode:
    return MachineCode(write_interpolation(_lanes(), workers, bias))
