"""Layouts of broadcast_to; the table compares its values."""

import pytest

from tests.kernels.cpu.onednn.checking import check, floats, normal, refused


@pytest.mark.parametrize("channels", [16, 20, 64])
def test_pixels_become_images_in_the_layout_of_convolutions(channels: int) -> None:
    result = (3, channels, 5, 6)
    ran = check("broadcast_to", {"shape": result}, [normal(1, 3, channels, 1, 1)], [floats(*result)], tolerance=0)
    convolved = check_convolution_layout(channels)
    assert ran.tags == ([""], [convolved])


def check_convolution_layout(channels: int) -> str:
    attributes = {"strides": (1, 1), "padding": (1, 1, 1, 1), "groups": 1}
    arrays = [normal(1, 3, channels, 5, 6), normal(2, channels, channels, 3, 3)]
    return check("conv2d", attributes, arrays, [floats(3, channels, 5, 6)]).tags[1][0]


def test_a_tensor_without_axes_is_refused() -> None:
    assert refused("broadcast_to", {"shape": (3, 4)}, [floats()], [floats(3, 4)])
