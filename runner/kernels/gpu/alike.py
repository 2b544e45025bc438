"""The arrangement of most kernels of images: all tensors of a node lie alike, as what they are given lies."""

from __future__ import annotations

from collections.abc import Sequence

from runner.kernels.contract import Arrangement, Attributes, Layout, Spec
from runner.kernels.gpu.layouts import CHANNELS_LAST, offered_layout


def arrange_alike(
    attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
) -> Arrangement:
    """Channels last for every tensor of four axes where one of the offers is that, else C order."""
    taken, given = ([offered_layout(spec, offered) for spec in specs] for specs in (inputs, outputs))
    return Arrangement(tuple(taken), tuple(given))


def innermost_channels(spec: Spec, layout: Layout) -> bool:
    """Whether the channels of an image (N, C, H, W), or of an array (N, C), are innermost."""
    return layout.tag == CHANNELS_LAST or len(spec.shape) == 2
