"""Windows of convolution and pooling: from padding as models write it to the four numbers of the ops."""

from collections.abc import Sequence
from dataclasses import dataclass

Padding = int | str | Sequence[int]
"""Zeros around an image: one width for all sides, (top, bottom, left, right), "valid" for none, or "same" for
ceil(size / stride) windows, with the odd zero at the bottom and at the right."""


class TooSmallError(ValueError):
    """The image holds no window."""


@dataclass(frozen=True)
class Windows:
    """Windows on an image as the ops take them: (rows, columns) twice, and (top, bottom, left, right)."""

    size: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]


def place(image: tuple[int, int], window: int, stride: int, padding: Padding, *, ceil: bool = False) -> Windows:
    """Place square windows on an image of (rows, columns).

    There are (size + padding - window) / stride + 1 windows along a side, rounded down. ceil: rounded up, as in Caffe
    and cuda-convnet, by more zeros at the bottom and at the right; but no window starts beyond the image and the
    padding before it. Raises TooSmallError naming the smallest image.
    """
    before, after = zip(*(_zeros(side, window, stride, padding, axis) for axis, side in enumerate(image)), strict=True)
    overhang = stride - 1 if ceil else 0
    needed = [max(1, window - low - high - overhang) for low, high in zip(before, after, strict=True)]
    if any(side < least for side, least in zip(image, needed, strict=True)):
        raise TooSmallError(
            f"its windows of {window}x{window} need images of at least {needed[0]}x{needed[1]}, but they are "
            f"{image[0]}x{image[1]} here; use larger images, or a model that shrinks them less"
        )
    if ceil:
        after = tuple(
            high + _overhang(side, window, stride, low, high)
            for side, low, high in zip(image, before, after, strict=True)
        )
    return Windows((window, window), (stride, stride), (before[0], after[0], before[1], after[1]))


def _zeros(side: int, window: int, stride: int, padding: Padding, axis: int) -> tuple[int, int]:
    """Return the zeros before and after an image along axis 0 (rows) or 1 (columns)."""
    if isinstance(padding, int):
        return padding, padding
    if padding == "valid":
        return 0, 0
    if padding == "same":
        windows = -(-side // stride)
        total = max(0, (windows - 1) * stride + window - side)
        return total // 2, total - total // 2
    if isinstance(padding, str) or len(padding) != 4:
        raise ValueError(f"padding {padding!r}: expected 'valid', 'same', a width or (top, bottom, left, right)")
    return padding[2 * axis], padding[2 * axis + 1]


def _overhang(side: int, window: int, stride: int, low: int, high: int) -> int:
    """Return the zeros after an image that complete the last window if the number of windows is rounded up."""
    padded = low + side + high
    windows = -(-(padded - window) // stride) + 1
    if (windows - 1) * stride >= low + side:
        windows -= 1
    return max(0, (windows - 1) * stride + window - padded)
