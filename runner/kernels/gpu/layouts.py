"""How tensors lie on a GPU: in C order, or, with four axes, with the channels last."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from runner.kernels.contract import Layout, Operand, Spec, plain

CHANNELS_LAST = "nhwc"
"""Tag of (N, C, H, W) with N, H, W, C from the outside in; of weights (K, C, R, S) with K, R, S, C. No gaps."""

_ORDER = (0, 2, 3, 1)


def channels_last(spec: Spec) -> Layout:
    """The layout of a tensor of four axes with its second innermost; raises ValueError for other tensors."""
    if len(spec.shape) != 4:
        raise ValueError(f"channels last of {spec.dtype}{list(spec.shape)}: expected four axes")
    return Layout(CHANNELS_LAST, spec.nbytes)


def strides(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """Distance, in elements, between neighbours along each axis; raises ValueError for a layout not of a GPU."""
    order = range(len(shape)) if layout.is_plain else _ORDER
    if layout.tag not in ("", CHANNELS_LAST):
        raise ValueError(f"layout {layout.tag!r} is none of a GPU's")
    sizes = [shape[axis] for axis in reversed(order)]
    distances = accumulate([1, *sizes][: len(sizes)], lambda a, b: a * b)
    found = dict(zip(reversed(order), distances, strict=True))
    return tuple(found[axis] for axis in range(len(shape)))


def strides_of(operand: Operand) -> tuple[int, ...]:
    """The strides of an operand, in elements."""
    return strides(operand.spec.shape, operand.layout)


def offered_layout(spec: Spec, offered: Sequence[Layout | None]) -> Layout:
    """Channels last where ``spec`` has four axes and one of the offers is that, else plain."""
    if len(spec.shape) == 4 and any(layout is not None and layout.tag == CHANNELS_LAST for layout in offered):
        return channels_last(spec)
    return plain(spec)
