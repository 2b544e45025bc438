"""Max pooling in one pass over the image. Unlike in oneDNN, the maximum of a window with NaN is NaN.

Images are plain (in C order), channels last, or in oneDNN's blocks of channels; results have the layout of the images.
The compiled function computes a range of the rows of all results, numbered across images and channels. The code for a
small window inside its image is unrolled; for any other window, a loop visits the pixels inside the image.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product

import numpy as np
from llvmlite import ir

from runner.kernels.contract import Arrangement, Attributes, Bound, Buffers, Kernel, Layout, Offers, Spec, Specs, plain
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.compiler import MachineCode, host
from runner.kernels.cpu.machine_code.elementwise import LIBRARY
from runner.kernels.cpu.machine_code.instructions import INDEX, ITEMSIZE, STORED, Lanes, Value, element, fold, repeat
from runner.kernels.cpu.machine_code.loops import slice_module
from runner.kernels.registry import Registry

PRIORITY = 25
"""Higher than the priority of the oneDNN kernel."""

DTYPES = frozenset({"float32", "bfloat16"})

_BLOCKS = re.compile(r"aBcd(8|16)b", re.ASCII)
_CHANNELS_LAST = "acdb"
_SMALL_WINDOW = 255
"""Largest window, in pixels, for which oneDNN stores each position as a byte if images are not plain."""


def register(registry: Registry) -> None:
    """Add the kernel of op ``max_pool``."""
    registry.add(Kernel("max_pool", "cpu", LIBRARY, PRIORITY, DTYPES, _arrange, _bind))


def _arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    (x,), (y, argmax), (given,) = inputs, outputs, offered
    layout = given or plain(x)
    if not x.nbytes or not y.nbytes or not _inner(layout, x):
        return None
    if layout.is_plain:
        return Arrangement((layout,), (plain(y), plain(argmax)))
    count = _columns(layout, x) * math.prod(y.shape[2:])
    small = math.prod(attributes["window"]) <= _SMALL_WINDOW
    positions = Layout(f"u8:{layout.tag}", count) if small else Layout(layout.tag, count * 4)
    return Arrangement((layout,), (Layout(layout.tag, count * ITEMSIZE[x.dtype]), positions))


def _columns(layout: Layout, x: Spec) -> int:
    """Return the count of numbers that all images store per pixel position, including the padding of blocks."""
    return layout.nbytes // (ITEMSIZE[x.dtype] * math.prod(x.shape[2:]))


def _inner(layout: Layout, x: Spec) -> int:
    """Return the count of numbers of one pixel that are adjacent in memory, or 0 if the layout is unknown."""
    if layout.is_plain:
        return 1
    if layout.tag == _CHANNELS_LAST:
        return x.shape[1]
    blocks = _BLOCKS.fullmatch(layout.tag)
    return int(blocks[1]) if blocks else 0


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
    """Return the count of numbers that are computed together, at most one vector."""
    most = host().vector_bytes // ITEMSIZE["float32"]
    return min(most, 1 << (inner.bit_length() - 1))


@cache
def _compiled(pooling: "Pooling") -> MachineCode:
    return MachineCode(write_module(pooling))


Ints = tuple[int, ...]

SIZES = 4
"""The number of sizes that a call receives: height and width of the image, then of the result."""

_UNROLLED = 25  # the largest window, in pixels, whose loop is unrolled
_COMPUTED = "float32"


@dataclass(frozen=True)
class Pooling:
    """A pooling to compile.

    inner: count of numbers of one pixel that are adjacent in memory. lanes: length of the vectors. in_bytes: whether
    positions are stored as uint8; otherwise they are stored as int32.
    """

    dtype: str
    window: Ints
    strides: Ints
    padding: Ints
    inner: int
    lanes: int
    in_bytes: bool

    @property
    def offsets(self) -> list[tuple[Lanes, int, int]]:
        """(lanes, begin, end) of each part of a pixel's numbers: the whole vectors, then the single numbers."""
        whole = self.inner // self.lanes * self.lanes
        parts = [(Lanes(_COMPUTED, self.lanes), 0, whole), (Lanes(_COMPUTED, 1), whole, self.inner)]
        return [part for part in parts if part[1] < part[2]]


def write_module(pooling: Pooling) -> str:
    """Return the LLVM module with the function ``slice``."""

    def write(builder: ir.IRBuilder, bases: list[Value], begin: Value, end: Value) -> None:
        *arrays, sizes = bases
        numbers = [builder.load(element(builder, sizes, INDEX, INDEX(k)), typ=INDEX) for k in range(SIZES)]
        repeat(builder, begin, end, 1, _Loops(pooling, builder, *arrays, *numbers).row)

    return slice_module("pooling", 4, write)


@dataclass(frozen=True)
class _Window:
    """A window. start: address of its first pixel, inside the image or not. rows, columns: ranges inside the image."""

    start: Value
    rows: tuple[Value, Value]
    columns: tuple[Value, Value]


@dataclass(frozen=True)
class _Best:
    """For every lane, the greatest number so far, its position, and whether a NaN occurred."""

    value: Value
    position: Value
    has_nan: Value


@dataclass(frozen=True)
class _Loops:
    pooling: Pooling
    builder: ir.IRBuilder
    x: Value
    y: Value
    positions: Value
    height: Value
    width: Value
    result_height: Value
    result_width: Value

    def row(self, number: Value) -> None:
        """Append the instructions for one row of the result."""
        b, p = self.builder, self.pooling
        tile, row = b.udiv(number, self.result_height), b.urem(number, self.result_height)
        top = b.sub(b.mul(row, INDEX(p.strides[0])), INDEX(p.padding[0]))
        rows = self._clipped(top, self.height, p.window[0])
        line = b.mul(b.add(b.mul(tile, self.height), top), self.width)
        first = b.mul(number, self.result_width)

        def column(index: Value) -> None:
            left = b.sub(b.mul(index, INDEX(p.strides[1])), INDEX(p.padding[2]))
            start = self._place(self.x, STORED[p.dtype], b.mul(b.add(line, left), INDEX(p.inner)))
            window = _Window(start, rows, self._clipped(left, self.width, p.window[1]))
            self._pixel(window, b.mul(b.add(first, index), INDEX(p.inner)))

        repeat(b, INDEX(0), self.result_width, 1, column)

    def _place(self, array: Value, kind: ir.Type, index: Value) -> Value:
        return element(self.builder, array, kind, index)

    def _clipped(self, start: Value, extent: Value, window: int) -> tuple[Value, Value]:
        """Return begin and end of the part of a window that is inside the image, along one axis."""
        b = self.builder
        before, behind = b.neg(start), b.sub(extent, start)
        begin = b.select(b.icmp_signed(">", before, INDEX(0)), before, INDEX(0))
        return begin, b.select(b.icmp_signed("<", behind, INDEX(window)), behind, INDEX(window))

    def _pixel(self, window: _Window, place: Value) -> None:
        """Append the instructions for one pixel of the result."""
        if self.pooling.window[0] * self.pooling.window[1] > _UNROLLED:
            self._numbers(window, place, unrolled=False)
            return
        with self.builder.if_else(self._is_inside(window)) as (inside, outside):
            with inside:
                self._numbers(window, place, unrolled=True)
            with outside:
                self._numbers(window, place, unrolled=False)

    def _is_inside(self, window: _Window) -> Value:
        b, (tall, wide) = self.builder, self.pooling.window
        edges = [(window.rows[0], 0), (window.rows[1], tall), (window.columns[0], 0), (window.columns[1], wide)]
        return reduce(b.and_, [b.icmp_signed("==", edge, INDEX(whole)) for edge, whole in edges])

    def _numbers(self, window: _Window, place: Value, *, unrolled: bool) -> None:
        """Append the instructions for the numbers of a pixel: whole vectors, then single numbers."""
        for lanes, begin, end in self.pooling.offsets:

            def numbers(offset: Value, lanes: Lanes = lanes) -> None:
                start = self._place(window.start, STORED[self.pooling.dtype], offset)
                moved = _Window(start, window.rows, window.columns)
                best = self._of_all(lanes, moved) if unrolled else self._of_some(lanes, moved)
                self._store(lanes, best, self.builder.add(place, offset))

            if end - begin == lanes.count:
                numbers(INDEX(begin))
            else:
                repeat(self.builder, INDEX(begin), INDEX(end), lanes.count, numbers)

    def _of_all(self, lanes: Lanes, window: _Window) -> _Best:
        """Return the greatest number of a window that is completely inside its image, by unrolled code."""
        tall, wide = self.pooling.window
        lines = [self._line(window, INDEX(row)) for row in range(tall)]
        numbers = [self._load(lanes, lines[row], INDEX(column)) for row, column in product(range(tall), range(wide))]
        # One comparison checks two numbers for NaN.
        pairs = zip(numbers[::2], [*numbers[1::2], *numbers[-1:]], strict=False)
        has_nan = reduce(self.builder.or_, [self.builder.fcmp_unordered("uno", a, b) for a, b in pairs])
        best = _Best(numbers[0], lanes.integer(0), has_nan)
        for position, number in enumerate(numbers[1:], 1):
            best = self._better(best, number, lanes.integer(position))
        # If no number is above minus infinity, the position is that of the first pixel.
        return best

    def _of_some(self, lanes: Lanes, window: _Window) -> _Best:
        """Return the greatest number in the part of a window that is inside its image, by loops."""
        b = self.builder

        def row(number: Value, values: list[Value]) -> Sequence[Value]:
            line = self._line(window, number)
            first = b.mul(number, INDEX(self.pooling.window[1]))

            def column(index: Value, values: list[Value]) -> Sequence[Value]:
                candidate = self._load(lanes, line, index)
                position = lanes.spread(b, b.trunc(b.add(first, index), ir.IntType(32)))
                best = self._better(_Best(*values), candidate, position)
                has_nan = b.or_(best.has_nan, b.fcmp_unordered("uno", candidate, candidate))
                return [best.value, best.position, has_nan]

            return fold(b, *window.columns, 1, values, column)

        nothing = ir.Constant(lanes.of(ir.IntType(1)), 0 if lanes.count == 1 else [0] * lanes.count)
        return _Best(*fold(b, *window.rows, 1, [lanes.constant(-math.inf), lanes.integer(0), nothing], row))

    def _line(self, window: _Window, row: Value) -> Value:
        """Return the address of the first pixel of a row of a window."""
        offset = self.builder.mul(row, self.builder.mul(self.width, INDEX(self.pooling.inner)))
        return self._place(window.start, STORED[self.pooling.dtype], offset)

    def _load(self, lanes: Lanes, line: Value, column: Value) -> Value:
        index = self.builder.mul(column, INDEX(self.pooling.inner))
        return lanes.load(self.builder, self.pooling.dtype, line, index)

    def _better(self, best: _Best, candidate: Value, position: Value) -> _Best:
        """Return the greater of ``best`` and a candidate, or ``best`` if both are equal."""
        b = self.builder
        greater = b.fcmp_ordered(">", candidate, best.value)
        value, found = b.select(greater, candidate, best.value), b.select(greater, position, best.position)
        return _Best(value, found, best.has_nan)

    def _store(self, lanes: Lanes, best: _Best, place: Value) -> None:
        b, dtype = self.builder, self.pooling.dtype
        value = b.select(best.has_nan, lanes.constant(math.nan), best.value)
        lanes.store(b, dtype, value, self.y, place)
        kind = ir.IntType(8 if self.pooling.in_bytes else 32)
        position = b.trunc(best.position, lanes.of(kind)) if self.pooling.in_bytes else best.position
        b.store(position, self._place(self.positions, kind, place), align=kind.width // 8)
