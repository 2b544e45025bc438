"""The arrangement of most kernels of images: all tensors of a node lie alike, as what they are given lies."""

from __future__ import annotations

from collections.abc import Sequence

from runner.kernels.gpu.layouts import CHANNELS_LAST, offered_layout
from runner.kernels.registry import Arrangement, Attributes, Layout, Operand, Spec


def arrange_alike(
    attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
) -> Arrangement:
    """Channels last for every tensor of four axes where one of the offers is that, else C order."""
    taken, given = ([offered_layout(spec, offered) for spec in specs] for specs in (inputs, outputs))
    return Arrangement(tuple(taken), tuple(given))


def is_channels_last(operand: Operand) -> bool:
    """Whether the channels are innermost: so lies an image of that layout, and an array (N, C)."""
    return operand.layout.tag == CHANNELS_LAST or len(operand.spec.shape) == 2
