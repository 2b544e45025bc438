"""Where elements lie on a GPU, in numbers."""

from __future__ import annotations

import pytest

from runner.kernels.contract import Layout, plain
from runner.kernels.gpu.layouts import CHANNELS_LAST, channels_last, offered_layout, strides
from tests.kernels.harness import Shaped

IMAGES = Shaped((2, 3, 4, 5), "float32")
MATRIX = Shaped((3, 4), "bfloat16")


def test_distances_between_neighbours() -> None:
    assert strides(IMAGES.shape, plain(IMAGES)) == (60, 20, 5, 1)
    assert strides(IMAGES.shape, channels_last(IMAGES)) == (60, 1, 15, 3)
    assert strides((), plain(Shaped((), "float32"))) == ()


def test_channels_last_is_for_four_axes() -> None:
    with pytest.raises(ValueError, match=r"channels last of bfloat16\[3, 4\]: expected four axes"):
        channels_last(MATRIX)


def test_a_layout_of_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="layout 'aBcd16b' is none of a GPU's"):
        strides(IMAGES.shape, Layout("aBcd16b", IMAGES.nbytes))


def test_one_offer_of_channels_last_is_followed_where_there_are_four_axes() -> None:
    offered = [None, plain(IMAGES), channels_last(IMAGES)]
    assert offered_layout(IMAGES, offered).tag == CHANNELS_LAST
    assert offered_layout(IMAGES, offered[:2]).is_plain
    assert offered_layout(MATRIX, offered).is_plain
