"""Bilinear, antialiased resizing of images of bytes, first across rows, then down columns.

Each pixel of a result is a weighted sum of adjacent pixels, rounded to a byte. The weights are those of Pillow, as
fixed-point numbers with 22 fractional bits. Results of Pillow can differ by 1, because it resizes columns first if that
is less work. Machine code and NumPy give the same bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from runner.data.compiled import can_compile

Bytes: TypeAlias = NDArray[np.uint8]
Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom of a region in pixels; the numbers may be fractions."""

_BITS = 22


def resized(pixels: Bytes, box: Box, height: int, width: int, *, mirrored: bool = False) -> Bytes:
    """Return a region of an image (H, W, 4), in C order, as (height, width, 4). mirrored: exchange left and right."""
    left, top, right, bottom = box
    columns, rows = weighted(pixels.shape[1], left, right, width), weighted(pixels.shape[0], top, bottom, height)
    if mirrored:
        columns = WeightedSums(np.ascontiguousarray(columns.starts[::-1]), np.ascontiguousarray(columns.weights[::-1]))
    first, stop = int(rows.starts[0]), int(rows.starts[-1]) + rows.terms
    across, down = _passes(max(columns.terms, rows.terms))
    between = across(pixels[first:stop], columns.starts, columns.weights)
    return down(between, rows.starts - first, rows.weights)


@dataclass(frozen=True)
class WeightedSums:
    """Weighted sums of adjacent pixels of a line. starts: (n,) the first pixel of each sum. weights: (n, terms)."""

    starts: NDArray[np.int64]
    weights: NDArray[np.int32]

    @property
    def terms(self) -> int:
        """The number of terms of each sum."""
        terms: int = self.weights.shape[1]
        return terms


def weighted(size: int, low: float, high: float, count: int) -> WeightedSums:
    """Return the sums that resize the pixels from ``low`` to ``high`` of a line of ``size`` pixels to ``count`` pixels.

    The formulas are those of ``precompute_coeffs`` in Pillow's Resample.c.
    """
    begin, end = np.float32(low), np.float32(high)
    scale = float(end - begin) / count
    reach = max(scale, 1.0)
    centre = float(begin) + (np.arange(count) + 0.5) * scale
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    stop = np.minimum((centre + reach + 0.5).astype(np.int64), size)
    terms = int((stop - first).max())
    # All sums have the same number of terms, some of weight 0, and none of them is outside of the line.
    starts = np.minimum(first, size - terms)
    places = starts[:, None] + np.arange(terms)
    distances = np.abs((places - centre[:, None] + 0.5) * (1.0 / reach))
    used = (places >= first[:, None]) & (places < stop[:, None])
    weights = np.where(used, np.maximum(1.0 - distances, 0.0), 0.0)
    total = weights[:, 0].copy()
    for term in range(1, terms):
        total += weights[:, term]
    return WeightedSums(starts, (0.5 + weights / total[:, None] * (1 << _BITS)).astype(np.int32))


_Pass: TypeAlias = Callable[[Bytes, NDArray[np.int64], NDArray[np.int32]], Bytes]


def _passes(terms: int) -> tuple[_Pass, _Pass]:
    """Return the functions that resize rows and columns by sums of up to ``terms`` terms."""
    if can_compile():
        from runner.kernels.cpu.machine_code import resizing

        if terms <= resizing.MOST_TERMS:
            return resizing.across, resizing.down
    return plain_across, plain_down


def plain_across(pixels: Bytes, starts: NDArray[np.int64], weights: NDArray[np.int32]) -> Bytes:
    """Return rows (H, n, 4). Each pixel is a weighted sum of adjacent pixels in a row of ``pixels``."""
    total = np.full((len(pixels), len(starts), pixels.shape[2]), 1 << (_BITS - 1), np.int32)
    for term, own in enumerate(weights.T):
        total += pixels[:, starts + term] * own[:, None]
    return (total >> _BITS).astype(np.uint8)


def plain_down(pixels: Bytes, starts: NDArray[np.int64], weights: NDArray[np.int32]) -> Bytes:
    """Return rows (n, W, 4). Each pixel is a weighted sum of adjacent pixels in a column of ``pixels``."""
    return plain_across(pixels.transpose(1, 0, 2), starts, weights).transpose(1, 0, 2)
