"""Copies between strided blocks of GPU memory, from which all rearrangements are built."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from runner.kernels.gpu.calls import StreamCall, blocks_for, launch
from runner.kernels.gpu.layouts import Axis, arguments, merged
from runner.kernels.gpu.runtime import Runtime, Stream
from runner.kernels.gpu.source import text

MOST_AXES = 6
"""The maximum rank of a copied block after merging axes."""

UNITS = {1: "uint8", 2: "bfloat16", 4: "uint32", 8: "int64"}
"""Bytes of a copied unit -> a dtype of this size."""


def copyable(axes: Iterable[Axis]) -> bool:
    """Whether :func:`copy` takes a block."""
    return len(merged(axes)) <= MOST_AXES


def copy(runtime: Runtime, itemsize: int, axes: Iterable[Axis], source: int, target: int) -> StreamCall:
    """Return the copy of a block of elements of ``itemsize`` bytes between addresses.

    axes: (extent, stride in the source, stride in the target). If source and target are the same, the call does
    nothing.
    """
    block = merged(axes)
    count = math.prod(axis[0] for axis in block)
    same = all(near == far for _, near, far in block)
    if not count or (same and source == target):
        return StreamCall(_nothing)
    if same and len(block) <= 1 and all(near == 1 for _, near, _ in block):
        return _straight(runtime, source, target, count * itemsize)
    unit, block = in_units(block, itemsize, (source, target))
    count = math.prod(axis[0] for axis in block)
    function = runtime.function(text("copies", T=UNITS[unit]), "copy_block")
    fixed = [np.uintp(source), np.uintp(target), np.int64(count), *arguments(block, MOST_AXES, 2)]
    return launch(function, blocks_for(runtime, count), fixed)


def clear(runtime: Runtime, nbytes: int, target: int) -> StreamCall:
    """Set bytes at an address to 0."""
    unit, ((count, _),) = in_units([(nbytes, 1)], 1, (target,))
    function = runtime.function(text("copies", T=UNITS[unit]), "clear")
    return launch(function, blocks_for(runtime, count), [np.uintp(target), np.int64(count)])


def in_units(block: Sequence[Axis], itemsize: int, addresses: Sequence[int]) -> tuple[int, list[Axis]]:
    """Return the largest unit, in bytes, in which a merged block can be copied, and the block in this unit."""
    if not block or any(near != 1 for near in block[-1][1:]):
        return itemsize, list(block)
    *outer, (extent, *_) = block
    marks = [extent, *(distance for axis in outer for distance in axis[1:])]
    common = math.gcd(*(mark * itemsize for mark in marks), *addresses)
    unit = max(size for size in UNITS if size == itemsize or (size > itemsize and common % size == 0))
    ratio = unit // itemsize
    ones = (1,) * (len(block[-1]) - 1)
    return unit, [*((e, *(d // ratio for d in far)) for e, *far in outer), (extent // ratio, *ones)]


def _straight(runtime: Runtime, source: int, target: int, nbytes: int) -> StreamCall:
    def enqueue(stream: Stream) -> None:
        runtime.copy(target, source, nbytes, stream)

    return StreamCall(enqueue)


def _nothing(stream: Stream) -> None:
    """Do nothing."""
