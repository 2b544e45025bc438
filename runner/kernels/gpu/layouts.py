"""Layouts of tensors on a GPU (C order or, with four axes, channels last), and axes as extents with strides."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from runner.kernels.contract import Arrangement, Attributes, Layout, Offers, Operand, Spec, Specs, plain

CHANNELS_LAST = "nhwc"
"""Tag of images (N, C, H, W) stored as N, H, W, C and of filters (K, C, R, S) stored as K, R, S, C, without gaps."""

_ORDER = (0, 2, 3, 1)


def channels_last(spec: Spec) -> Layout:
    """Return the layout with the second of four axes innermost; raises ValueError for other ranks."""
    if len(spec.shape) != 4:
        raise ValueError(f"channels last of {spec.dtype}{list(spec.shape)}: expected four axes")
    return Layout(CHANNELS_LAST, spec.nbytes)


def strides(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """Return the stride of each axis, in elements; raises ValueError for a layout of another device."""
    order = range(len(shape)) if layout.is_plain else _ORDER
    if layout.tag not in ("", CHANNELS_LAST):
        raise ValueError(f"layout {layout.tag!r} is not a layout of GPUs")
    sizes = [shape[axis] for axis in reversed(order)]
    distances = accumulate([1, *sizes][: len(sizes)], lambda a, b: a * b)
    found = dict(zip(reversed(order), distances, strict=True))
    return tuple(found[axis] for axis in range(len(shape)))


def strides_of(operand: Operand) -> tuple[int, ...]:
    """Return the strides of an operand, in elements."""
    return strides(operand.spec.shape, operand.layout)


def broadcast_strides(shape: Sequence[int], layout: Layout, rank: int) -> tuple[int, ...]:
    """Return the strides of a tensor that is broadcast to ``rank`` axes: 0 for axes along which it is repeated."""
    own = zip(shape, strides(shape, layout), strict=True)
    return (0,) * (rank - len(shape)) + tuple(0 if extent == 1 else stride for extent, stride in own)


def offered_layout(spec: Spec, offered: Offers) -> Layout:
    """Return the layout with channels last if ``spec`` has four axes and one offer has this layout, else C order."""
    if len(spec.shape) == 4 and any(layout is not None and layout.tag == CHANNELS_LAST for layout in offered):
        return channels_last(spec)
    return plain(spec)


def arrange_alike(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    """Arrange all tensors of four axes with channels last if any offer has channels last; otherwise use C order."""
    taken, given = ([offered_layout(spec, offered) for spec in specs] for specs in (inputs, outputs))
    return Arrangement(tuple(taken), tuple(given))


def innermost_channels(spec: Spec, layout: Layout) -> bool:
    """Return whether the channels of a tensor (N, C, H, W) or (N, C) are the innermost axis."""
    return layout.tag == CHANNELS_LAST or len(spec.shape) == 2


Axis = tuple[int, ...]
"""The extent of an axis, then its stride in each tensor, in elements."""


def merged(axes: Iterable[Axis]) -> list[Axis]:
    """Return as few axes as possible that address the same elements, in descending order of the last stride.

    Axes of extent 1 are removed; two axes are merged if the outer axis continues the inner axis in every tensor.
    """
    result: list[Axis] = []
    for extent, *inner in sorted((axis for axis in axes if axis[0] != 1), key=lambda axis: -axis[-1]):
        if result and all(far == extent * near for far, near in zip(result[-1][1:], inner, strict=True)):
            result[-1] = (result[-1][0] * extent, *inner)
        else:
            result.append((extent, *inner))
    return result


def arguments(axes: Sequence[Axis], rank: int, tensors: int) -> list[np.int64]:
    """Return the arguments for a kernel of ``rank`` axes: all extents but the first, then the strides in each tensor.

    Missing axes get extent 1. Raises ValueError for more than ``rank`` axes.
    """
    if len(axes) > rank:
        raise ValueError(f"{len(axes)} axes for a kernel that takes {rank}")
    filled = [*axes, *[(1, *[0] * tensors)] * (rank - len(axes))]
    return [np.int64(axis[0]) for axis in filled[1:]] + [
        np.int64(axis[1 + tensor]) for tensor in range(tensors) for axis in filled
    ]
