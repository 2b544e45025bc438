"""Augmentations of plugins: draws that depend on seed, step and position only, and refusals."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.data import Synthetic
from runner.data.augmentation import AUGMENTATIONS, Augment, Augmentation, Augmenter
from runner.data.colour import DISTORTIONS
from runner.data.pipeline import Pipeline
from runner.data.settings import load_limited
from runner.errors import ConfigError
from runner.kernels import philox
from tests.plugin_tables import example, restored_tables


class Grown(Augmentation):
    """An augmentation that returns one image too many."""

    def apply(self, x: NDArray[Any], draws: NDArray[np.float64]) -> NDArray[Any]:
        return np.concatenate([x, x[:1]])


@pytest.fixture(autouse=True)
def cutout() -> Iterator[None]:
    with restored_tables():
        AUGMENTATIONS.update(example("own_dataset/bars.py").augmentations, grown=Grown)
        yield


def settings(**augment: Any) -> Synthetic:
    return Synthetic(shape=[2, 9, 8], classes=3, examples=20, test_examples=7, augment=Augment(**augment))


def batch(augment: Augment, split: str = "train", seed: int = 0, lo: int = 0, hi: int = 30) -> NDArray[Any]:
    data = load_limited(settings())
    return Pipeline(data, seed=seed, batch_size=30, dtype="float64", augment=augment).read(split, 0, lo, hi)["x"]


def test_a_square_of_each_training_image_is_black() -> None:
    plain, cut = (batch(Augment(others=others)) for others in ({}, {"cutout": {"size": 3}}))
    changed = (plain != cut).any(axis=1)
    assert (changed.sum(axis=(1, 2)) <= 9).all()
    assert (changed.sum(axis=(1, 2)) >= 1).all()
    assert len(np.unique(cut[changed.any(axis=(1, 2))].min(axis=(1, 2, 3)))) == 1, "black everywhere"
    assert len({image.tobytes() for image in changed}) > 15, "examples differ, also the same example in two epochs"
    np.testing.assert_array_equal(batch(Augment(others={"cutout": {}}), "test", hi=7), batch(Augment(), "test", hi=7))


def test_draws_depend_on_the_seed_and_not_on_shares_or_other_augmentations() -> None:
    cut = Augment(others={"cutout": {"size": 3}})
    whole = batch(cut)
    np.testing.assert_array_equal(np.concatenate([batch(cut, lo=0, hi=11), batch(cut, lo=11)]), whole)
    assert not np.array_equal(batch(cut, seed=1), whole)
    both = batch(Augment(flip=True, others={"cutout": {"size": 3}}))
    np.testing.assert_array_equal((both == both.min()).all(axis=1), (whole == whole.min()).all(axis=1))


def test_colours_of_8_bit_images_are_distorted_after_the_crop() -> None:
    images = np.random.default_rng(1).integers(0, 256, (6, 3, 5, 4)).astype(np.uint8)
    positions = np.arange(6)
    changed = Augmenter(Augment(colour="fast", flip=True), 4, "mine").apply(images, positions, 2)
    flipped = Augmenter(Augment(flip=True), 4, "mine").apply(images, positions, 2)
    draws = philox.uniform(philox.key(4, "mine/augment/colour"), positions, 3, 2)
    for image, before, own in zip(changed, flipped, draws, strict=True):
        expected = DISTORTIONS["fast"].apply(before / np.float32(255), own)
        np.testing.assert_array_equal(image, np.rint(255 * expected))
    empty = Augmenter(Augment(colour="fast"), 4, "mine").apply(images[:0], positions[:0], 2)
    assert (empty.shape, empty.dtype) == ((0, 3, 5, 4), np.uint8), "a share of a batch may be empty"
    with pytest.raises(ConfigError, match=r"data\.augment\.colour=fast: expected images of 8 bits .*, found float64"):
        Augmenter(Augment(colour="fast"), 4, "mine").apply(images / 255, positions, 2)


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        ({"others": {"cut": {}}}, "others.cut: expected an augmentation from a --plugin: cutout, grown"),
        ({"others": {"cutout": {"size": 0}}}, "others.cutout.size: 0, expected 1 to"),
        ({"others": {"cutout": {"side": 3}}}, "others.cutout.side: no such key"),
        ({"others": {"cutout": 3}}, "others.cutout: expected a section of keys, or {} for defaults, found 3"),
        ({"colour": "fasts"}, "colour='fasts': expected one of full, fast, pca, or null"),
        ({"colour": "fast"}, "colour=fast: expected null, because the examples of dataset 'synthetic' are not "),
    ],
)
def test_wrong_settings_are_refused(augment: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**augment)
    assert str(caught.value).startswith(f"data.augment.{message}")


def test_another_shape_is_refused() -> None:
    message = r"others\.grown: apply returned uint8\[31, 2, 9, 8\]; expected the shape and"
    with pytest.raises(ConfigError, match=message):
        batch(Augment(others={"grown": {}}))
