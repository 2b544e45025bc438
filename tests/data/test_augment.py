"""Crops and mirror images, against an obvious loop."""

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.data.published import Mnist
from runner.data.settings import Augment
from runner.errors import ConfigError


def by_hand(image: NDArray[np.uint8], padding: int, flip: bool, draws: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Crop and mirror one (C, H, W) image."""
    channels, height, width = image.shape
    canvas = np.zeros((channels, height + 2 * padding, width + 2 * padding), np.uint8)
    canvas[:, padding : padding + height, padding : padding + width] = image
    top, left = int(draws[0] * (2 * padding + 1)), int(draws[1] * (2 * padding + 1))
    cut = canvas[:, top : top + height, left : left + width]
    return cut[:, :, ::-1] if flip and draws[2] < 0.5 else cut


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [False, True])
def test_batch_equals_a_loop_over_its_images(padding: int, flip: bool):
    rng = np.random.default_rng(0)
    images = rng.integers(1, 256, (40, 3, 5, 7), np.uint8)
    draws = rng.random((40, 3))
    expected = np.stack([by_hand(*pair) for pair in zip(images, [padding] * 40, [flip] * 40, draws, strict=True)])
    np.testing.assert_array_equal(Augment(padding, flip).apply(images, draws), expected)


def test_all_places_and_both_sides_are_reached():
    image = np.arange(1, 10, dtype=np.uint8).reshape(1, 1, 3, 3)
    images = np.repeat(image, 600, axis=0)
    varied = Augment(1, True).apply(images, np.random.default_rng(0).random((600, 3)))
    assert len(np.unique(varied.reshape(600, -1), axis=0)) == 3 * 3 * 2


def test_extreme_draws_stay_inside():
    images = np.ones((2, 1, 4, 4), np.uint8)
    Augment(2, True).apply(images, np.array([[0.0, 0.0, 0.0], [1 - 2**-32] * 3]))


def test_padding_must_leave_some_image_in_every_crop():
    with pytest.raises(ConfigError, match=r"crop_padding is 28; for dataset 'mnist' it must be less than 28"):
        Mnist(augment=Augment(crop_padding=28))
