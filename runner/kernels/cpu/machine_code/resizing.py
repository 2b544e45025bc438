"""Weighted sums of adjacent pixels of four bytes, with which ``runner.data.resizing`` resizes images."""

from functools import cache, partial
from typing import TypeAlias

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from runner.kernels.cpu.machine_code.instructions import INDEX, Lanes, Value, element, repeat, whole_part
from runner.kernels.cpu.machine_code.loops import COMPILING, ArrayLoop, slice_module

CHANNELS = 4
MOST_TERMS = 12
"""The largest number of terms of a sum for which code is compiled."""

_BITS = 22
"""Fractional bits of the weights."""

_BYTE, _WORD = ir.IntType(8), ir.IntType(32)
_BYTES_AT_ONCE = 8

Bytes: TypeAlias = NDArray[np.uint8]


def across(pixels: Bytes, starts: NDArray[np.int64], weights: NDArray[np.int32]) -> Bytes:
    """Resize the rows of ``pixels`` (H, W, 4) to (H, n, 4). starts: (n,). weights: (n, terms). All in C order."""
    out = np.empty((len(pixels), len(starts), CHANNELS), np.uint8)
    _run("across", pixels, out, starts, weights)
    return out


def down(pixels: Bytes, starts: NDArray[np.int64], weights: NDArray[np.int32]) -> Bytes:
    """Resize the columns of ``pixels`` (H, W, 4) to (n, W, 4). starts: (n,). weights: (n, terms). All in C order."""
    out = np.empty((len(starts), *pixels.shape[1:]), np.uint8)
    _run("down", pixels, out, starts, weights)
    return out


def _run(kind: str, source: Bytes, out: Bytes, starts: NDArray[np.int64], weights: NDArray[np.int32]) -> None:
    sizes = np.array([source.shape[1], out.shape[1]], np.int64)
    with COMPILING:
        loop = _compiled(kind, weights.shape[1])
    loop((source, out, starts, weights, sizes), len(out))


@cache
def _compiled(kind: str, terms: int) -> ArrayLoop:
    return ArrayLoop(write_module(kind, terms))


def write_module(kind: str, terms: int) -> str:
    """Return the LLVM module whose function ``slice`` computes a range of rows of a result.

    Arrays: source, result, starts, weights, and the widths of source and result in pixels. kind: "across" resizes rows,
    and "down" resizes columns. terms: the number of terms of each sum.
    """

    def write(builder: ir.IRBuilder, bases: list[Value], begin: Value, end: Value) -> None:
        writer = _Writer(builder, bases, terms)
        repeat(builder, begin, end, 1, {"across": writer.across, "down": writer.down}[kind])

    return slice_module("resizing", 5, write)


class _Writer:
    """A writer of the instructions for one row of a result."""

    def __init__(self, builder: ir.IRBuilder, bases: list[Value], terms: int) -> None:
        self.builder = builder
        self._terms = terms
        self._source, self._out, self._starts, self._weights, sizes = bases
        self._source_row, self._row = (
            builder.mul(builder.load(element(builder, sizes, INDEX, INDEX(k)), typ=INDEX), INDEX(CHANNELS))
            for k in range(2)
        )

    def across(self, row: Value) -> None:
        """Append the loop over the pixels of a row. Each pixel has its own start and weights."""
        builder = self.builder
        source, out = builder.mul(row, self._source_row), builder.mul(row, self._row)

        def write(pixel: Value) -> None:
            first = builder.add(source, builder.mul(self._start(pixel), INDEX(CHANNELS)))
            places = [builder.add(first, INDEX(CHANNELS * term)) for term in range(self._terms)]
            self._store_sum(
                places, self._spread(pixel, CHANNELS), builder.add(out, builder.mul(pixel, INDEX(CHANNELS)))
            )

        repeat(builder, INDEX(0), builder.sdiv(self._row, INDEX(CHANNELS)), 1, write)

    def down(self, row: Value) -> None:
        """Append the loops over the bytes of a row. All bytes share the start and weights of the row."""
        builder, start = self.builder, self._start(row)
        rows = [builder.mul(builder.add(start, INDEX(term)), self._row) for term in range(self._terms)]
        begin, out = INDEX(0), builder.mul(row, self._row)
        for count in (_BYTES_AT_ONCE, CHANNELS):
            stop = builder.add(begin, whole_part(builder, builder.sub(self._row, begin), count))
            repeat(builder, begin, stop, count, partial(self._column, rows, self._spread(row, count), out))
            begin = stop

    def _column(self, rows: list[Value], weights: list[Value], out: Value, column: Value) -> None:
        places = [self.builder.add(row, column) for row in rows]
        self._store_sum(places, weights, self.builder.add(out, column))

    def _start(self, number: Value) -> Value:
        return self.builder.load(element(self.builder, self._starts, INDEX, number), typ=INDEX)

    def _spread(self, number: Value, count: int) -> list[Value]:
        """Append loads of the weights of a sum, each copied to ``count`` lanes."""
        builder, first = self.builder, self.builder.mul(number, INDEX(self._terms))
        indices = [builder.add(first, INDEX(term)) for term in range(self._terms)]
        weights = [builder.load(element(builder, self._weights, _WORD, index), typ=_WORD) for index in indices]
        return [Lanes("float32", count).spread(builder, weight) for weight in weights]

    def _store_sum(self, places: list[Value], weights: list[Value], place: Value) -> None:
        """Append a rounded weighted sum of bytes, which fits a byte: weights are not negative and add up to about 1."""
        builder, kind = self.builder, weights[0].type
        total = ir.Constant(kind, [1 << (_BITS - 1)] * kind.count)
        for source, weight in zip(places, weights, strict=True):
            address = element(builder, self._source, _BYTE, source)
            number = builder.load(address, typ=ir.VectorType(_BYTE, kind.count), align=1)
            total = builder.add(total, builder.mul(builder.zext(number, kind), weight))
        rounded = builder.lshr(total, ir.Constant(kind, [_BITS] * kind.count))
        result = builder.trunc(rounded, ir.VectorType(_BYTE, kind.count))
        builder.store(result, element(builder, self._out, _BYTE, place), align=1)
