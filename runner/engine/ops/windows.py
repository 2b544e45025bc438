"""Geometry shared by convolution and pooling: windows that slide over padded images.

Images are (N, C, H, W). Strides are (rows, columns); padding is (top, bottom, left, right). A window that
would reach beyond the padded image is left out: out = (in + padding - window) // stride + 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.op import expect
from runner.engine.tensor import TensorSpec


def expect_window_attributes(op: str, strides: Sequence[int], padding: Sequence[int]) -> None:
    """Require two positive strides and four non-negative paddings."""
    expect(len(strides) == 2 and min(strides) > 0, op, "two positive strides", tuple(strides))
    expect(len(padding) == 4 and min(padding) >= 0, op, "four non-negative paddings", tuple(padding))


def window_counts(
    op: str, image: TensorSpec, window: Sequence[int], strides: Sequence[int], padding: Sequence[int]
) -> tuple[int, int]:
    """Number of windows down and across an (N, C, H, W) image; at least one each way."""
    expect(len(window) == 2 and min(window) > 0, op, "a window with two positive extents", tuple(window))
    expect_window_attributes(op, strides, padding)
    top, bottom, left, right = padding
    rows = (image.shape[2] + top + bottom - window[0]) // strides[0] + 1
    columns = (image.shape[3] + left + right - window[1]) // strides[1] + 1
    expect(
        rows > 0 and columns > 0,
        op,
        f"an image that holds window {tuple(window)} with padding {padding}",
        image,
    )
    return rows, columns
