"""Loops over the elements of broadcast tensors, merged to as few axes as possible."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runner.kernels.contract import Layout, Spec
from runner.kernels.gpu.layouts import strides


@dataclass(frozen=True)
class Axis:
    """A loop over a result without gaps. strides: of each input, in elements; 0 if the input is broadcast."""

    extent: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Broadcast:
    """Loops over a result, the innermost first. count: number of elements."""

    count: int
    axes: tuple[Axis, ...]

    @property
    def wide(self) -> tuple[bool, ...] | None:
        """For each input, whether it is laid out as the result or is one element; None if an input is neither."""
        if len(self.axes) != 1 or not set(self.axes[0].strides) <= {0, 1}:
            return None
        return tuple(stride == 1 for stride in self.axes[0].strides)


def broadcast(inputs: Sequence[tuple[Spec, Layout]], result: tuple[Spec, Layout]) -> Broadcast:
    """Return the loops over a result of tensors that broadcast to its shape."""
    shape = result[0].shape
    count = math.prod(shape)
    if count <= 1:
        # An input without elements is not a scalar.
        alike = [int(spec.shape == shape or not math.prod(spec.shape)) for spec, _ in inputs]
        return Broadcast(count, (Axis(count, tuple(alike)),))
    own = strides(shape, result[1])
    along = [_broadcast_strides(spec.shape, layout, len(shape)) for spec, layout in inputs]
    inside_out = sorted((axis for axis in range(len(shape)) if shape[axis] > 1), key=lambda axis: own[axis])
    axes: list[Axis] = []
    for axis in inside_out:
        here = Axis(shape[axis], tuple(each[axis] for each in along))
        if axes and _goes_on(axes[-1], here):
            axes[-1] = Axis(axes[-1].extent * here.extent, axes[-1].strides)
        else:
            axes.append(here)
    return Broadcast(count, tuple(axes))


def _goes_on(inner: Axis, outer: Axis) -> bool:
    """Whether, for every input, the outer axis continues the inner one."""
    return all(o == i * inner.extent for i, o in zip(inner.strides, outer.strides, strict=True))


def _broadcast_strides(shape: Sequence[int], layout: Layout, rank: int) -> tuple[int, ...]:
    own = strides(shape, layout)
    missing = (0,) * (rank - len(shape))
    return (*missing, *(0 if extent == 1 else stride for extent, stride in zip(shape, own, strict=True)))
