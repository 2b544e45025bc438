"""Changes of the colours of an image: each loop reads and writes the three channels of a pixel once.

The changes of a loop are computed in registers. Contrast depends on the mean of each channel, so it begins a new loop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partialmethod
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from runner.kernels.cpu.machine_code.compiler import host
from runner.kernels.cpu.machine_code.instructions import EMIT, INDEX, STORED, Lanes, Value, element
from runner.kernels.cpu.machine_code.loops import COMPILING, ArrayLoop, slice_module, sweep

DTYPE = "float32"
CHANNELS = 3

PIXEL_BYTES = 4
LARGEST = 255
"""The value of a byte that stands for 1."""

Pixels: TypeAlias = NDArray[np.float32]
Bytes: TypeAlias = NDArray[np.uint8]

Change: TypeAlias = tuple[str, tuple[float, ...]]
"""A change of all pixels and its amounts, which are rounded to float32.

shift: add an amount to each channel; 3 amounts. saturation: multiply the saturation of the HSV model; 1 amount. hue:
add sixths of the circle to the hue; 1 amount. contrast: multiply the distances from the mean of each channel; 1 amount.
"""


def changed(pixels: Pixels | Bytes, changes: Sequence[Change]) -> Pixels:
    """Return a new image after all changes, clipped to 0 to 1. pixels: (3, H, W), from 0 to 1 or bytes.

    Bytes are read fastest if each pixel has four adjacent bytes in memory, of which the fourth is ignored.
    """
    is_bytes = pixels.dtype == np.uint8
    source: Any = _adjacent(pixels) if is_bytes else np.ascontiguousarray(pixels, np.float32)
    out = np.empty(pixels.shape, np.float32)
    # Contrast needs the mean of float32 numbers. If a contrast is the first change of bytes, an empty loop converts the
    # bytes first.
    begins = [place for place, (name, _) in enumerate(changes) if name == "contrast" and (place or is_bytes)]
    for begin, end in pairwise([0, *begins, len(changes)]):
        names = tuple(name for name, _ in changes[begin:end])
        given = [amount for _, amounts in changes[begin:end] for amount in amounts]
        if names[:1] == ("contrast",):
            given[1:1] = source.mean(axis=(1, 2), dtype=np.float64)
        before = [source] if source.dtype == np.uint8 else list(source)
        with COMPILING:
            loop = _compiled(names, source.dtype == np.uint8, end == len(changes))
        loop([*before, *out, np.array(given, np.float32)], out[0].size)
        source = out
    return out


def _adjacent(pixels: Any) -> Bytes:
    """Return pixels (3, H, W) of four adjacent bytes each, without a copy if they already have this layout."""
    height, width = pixels.shape[1:]
    if pixels.strides == (1, PIXEL_BYTES * width, PIXEL_BYTES):
        found: Bytes = pixels
        return found
    copied = np.empty((height, width, PIXEL_BYTES), np.uint8)
    copied[:, :, :CHANNELS] = pixels.transpose(1, 2, 0)
    return copied[:, :, :CHANNELS].transpose(2, 0, 1)


@cache
def _compiled(names: tuple[str, ...], from_bytes: bool, clipped: bool) -> ArrayLoop:
    return ArrayLoop(write_module(names, from_bytes=from_bytes, clipped=clipped, vector_bytes=host().vector_bytes))


def write_module(names: Sequence[str], *, from_bytes: bool, clipped: bool, vector_bytes: int) -> str:
    """Return the LLVM module whose function ``slice`` applies the changes ``names`` to a range of pixels.

    Arrays: the channels before, the channels after, and the amounts of all changes; the means of a contrast follow its
    factor. from_bytes: whether the channels before are one array (H, W, 4) of bytes. clipped: whether to clip results.
    """
    sources = 1 if from_bytes else CHANNELS
    count = sum(_CHANGES[name][0] for name in names)

    def write(builder: ir.IRBuilder, bases: list[Value], begin: Value, end: Value) -> None:
        places = [element(builder, bases[-1], STORED[DTYPE], INDEX(k)) for k in range(count)]
        given = [_ONE.load(builder, DTYPE, place) for place in places]

        def body(lanes: Lanes) -> Callable[[Value], None]:
            spread = [_Numbers(builder, lanes, lanes.spread(builder, number)) for number in given]

            def emit(index: Value) -> None:
                read = _channels_of_bytes if from_bytes else _channels
                pixel, rest = read(builder, lanes, bases[:sources], index), list(spread)
                for name in names:
                    taken, change = _CHANGES[name]
                    pixel = change(pixel, rest[:taken])
                    rest = rest[taken:]
                for number, base in zip(pixel, bases[sources:-1], strict=True):
                    result = number.clipped() if clipped else number
                    lanes.store(builder, DTYPE, result.value, base, index)

            return emit

        sweep(builder, DTYPE, vector_bytes, begin, end, body)

    return slice_module("colours", sources + CHANNELS + 1, write)


def _channels(builder: ir.IRBuilder, lanes: Lanes, bases: Sequence[Value], index: Value) -> "_Pixel":
    return [_Numbers(builder, lanes, lanes.load(builder, DTYPE, base, index)) for base in bases]


def _channels_of_bytes(builder: ir.IRBuilder, lanes: Lanes, bases: Sequence[Value], index: Value) -> "_Pixel":
    """Append a load of adjacent pixels; separate their channels and scale them to 0 to 1."""
    byte, (base,) = ir.IntType(8), bases
    place = element(builder, base, byte, builder.mul(index, INDEX(PIXEL_BYTES)))
    together = ir.VectorType(byte, PIXEL_BYTES * lanes.count)
    pixels = builder.load(place, typ=together, align=1)
    found: _Pixel = []
    for channel in range(CHANNELS):
        if lanes.count == 1:
            own = builder.extract_element(pixels, INDEX(channel))
        else:
            order = [PIXEL_BYTES * lane + channel for lane in range(lanes.count)]
            numbers = ir.Constant(ir.VectorType(ir.IntType(32), lanes.count), order)
            own = builder.shuffle_vector(pixels, ir.Constant(together, ir.Undefined), numbers)
        whole = builder.sitofp(builder.zext(own, lanes.of(ir.IntType(32))), lanes.type)
        found.append(_Numbers(builder, lanes, whole) * (1 / LARGEST))
    return found


_ONE = Lanes(DTYPE, 1)


@dataclass(frozen=True)
class _Numbers:
    """A vector of numbers, whose operators append instructions. The other operand is a vector or a literal."""

    builder: ir.IRBuilder
    lanes: Lanes
    value: Value

    def _applied(self, function: str, *others: "_Numbers | float") -> "_Numbers":
        return self._new(EMIT[function](self.builder, self.lanes, self.value, *map(self._of, others)))

    __add__ = partialmethod(_applied, "add")
    __sub__ = partialmethod(_applied, "sub")
    __mul__ = partialmethod(_applied, "mul")
    __truediv__ = partialmethod(_applied, "div")
    maximum = partialmethod(_applied, "maximum")
    minimum = partialmethod(_applied, "minimum")
    magnitude = partialmethod(_applied, "abs")

    def floor(self) -> "_Numbers":
        return self._new(self.lanes.intrinsic(self.builder, "floor", self.value))

    def is_equal(self, other: "_Numbers") -> Value:
        return self.builder.fcmp_ordered("==", self.value, other.value)

    def clipped(self) -> "_Numbers":
        """Append a clip to 0 to 1 that keeps -0, as ``numpy.clip`` does."""
        builder, value, zero, one = self.builder, self.value, self._of(0.0), self._of(1.0)
        above = builder.select(builder.fcmp_ordered("<", value, zero), zero, value)
        return self._new(builder.select(builder.fcmp_ordered(">", above, one), one, above))

    def chosen(self, condition: Value, other: "_Numbers | float") -> "_Numbers":
        """Append a select: these numbers where ``condition`` is true, ``other`` elsewhere."""
        return self._new(self.builder.select(condition, self.value, self._of(other)))

    def literal(self, value: float) -> "_Numbers":
        return self._new(self._of(value))

    def _of(self, other: "_Numbers | float") -> Value:
        return other.value if isinstance(other, _Numbers) else self.lanes.constant(other)

    def _new(self, value: Value) -> "_Numbers":
        return _Numbers(self.builder, self.lanes, value)


_Pixel: TypeAlias = list[_Numbers]
_TINY = 1e-30
"""The smallest divisor, used for grey pixels, whose channels are equal."""


def _shift(pixel: _Pixel, amounts: _Pixel) -> _Pixel:
    return [channel + amount for channel, amount in zip(pixel, amounts, strict=True)]


def _contrast(pixel: _Pixel, amounts: _Pixel) -> _Pixel:
    factor, *means = amounts
    return [(channel - mean) * factor + mean for channel, mean in zip(pixel, means, strict=True)]


def _saturation(pixel: _Pixel, amounts: _Pixel) -> _Pixel:
    red, green, blue = pixel
    largest = red.maximum(green).maximum(blue)
    spread = largest - red.minimum(green).minimum(blue)
    factor = amounts[0].minimum(largest / spread.maximum(_TINY))
    return [(channel - largest) * factor + largest for channel in pixel]


def _hue(pixel: _Pixel, amounts: _Pixel) -> _Pixel:
    red, green, blue = pixel
    largest = red.maximum(green).maximum(blue)
    smallest = red.minimum(green).minimum(blue)
    spread = largest - smallest
    is_red, is_green = largest.is_equal(red), largest.is_equal(green)
    distance = (green - blue).chosen(is_red, (blue - red).chosen(is_green, red - green))
    centre = red.literal(0.0).chosen(is_red, red.literal(2.0).chosen(is_green, 4.0))
    sixth = distance / spread.maximum(_TINY) + centre + amounts[0]
    sixth = sixth - (sixth / 6.0).floor() * 6.0
    parts = [
        (sixth - place).magnitude() * sign + offset
        for place, sign, offset in ((3.0, 1.0, -1.0), (2.0, -1.0, 2.0), (4.0, -1.0, 2.0))
    ]
    return [part.clipped() * spread + smallest for part in parts]


_CHANGES: Mapping[str, tuple[int, Callable[[_Pixel, _Pixel], _Pixel]]] = {
    "shift": (CHANNELS, _shift),
    "saturation": (1, _saturation),
    "hue": (1, _hue),
    "contrast": (1 + CHANNELS, _contrast),
}
"""Name of a change -> the number of its amounts in a loop, and the function that appends its instructions."""
