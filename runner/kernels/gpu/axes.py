"""Axes of strided tensors as pure data: merged where one is a walk on from the other, in the order of memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

Axis = tuple[int, ...]
"""An extent, and behind it the distance between neighbours, in elements, in each tensor that is walked together."""


def merged(axes: Iterable[Axis]) -> list[Axis]:
    """The same elements with as few axes as can be, those with the largest last distance first.

    Axes of extent 1 disappear; two axes are one where, in every tensor, the outer continues the inner.
    """
    result: list[Axis] = []
    for extent, *inner in sorted((axis for axis in axes if axis[0] != 1), key=lambda axis: -axis[-1]):
        if result and all(far == extent * near for far, near in zip(result[-1][1:], inner, strict=True)):
            result[-1] = (result[-1][0] * extent, *inner)
        else:
            result.append((extent, *inner))
    return result


def arguments(axes: Sequence[Axis], rank: int, tensors: int) -> list[np.int64]:
    """How kernels take at most ``rank`` axes: extents of all but the first, then the distances in each tensor.

    What is missing is added at the end, with extent 1.
    """
    if len(axes) > rank:
        raise ValueError(f"{len(axes)} axes for a kernel that takes {rank}")
    filled = [*axes, *[(1, *[0] * tensors)] * (rank - len(axes))]
    return [np.int64(axis[0]) for axis in filled[1:]] + [
        np.int64(axis[1 + tensor]) for tensor in range(tensors) for axis in filled
    ]
