"""Synthetic images: exact in shape and number, reproducible, learnable."""

import numpy as np
import pytest

from runner.data import synthetic
from runner.data.synthetic import Synthetic
from runner.errors import ConfigError


def make(**changes: object) -> Synthetic:
    """Return small settings with some changed."""
    settings = {"shape": [3, 9, 13], "classes": 7, "examples": 70, "test_examples": 35, **changes}
    return Synthetic(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [[3, 9, 13], [1, 1, 1], [2, 32, 8]])
def test_facts_are_those_of_the_loaded_data(shape: list[int]):
    settings = make(shape=shape)
    assert settings.load().facts == settings.facts()
    assert settings.facts().shape == tuple(shape)


def test_the_class_can_be_seen_through_the_noise():
    dataset = make().load()
    means = np.stack([dataset.train.images[dataset.train.labels == c].mean(0) for c in range(7)])
    distance = ((dataset.test.images[:, None] - means[None]) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == dataset.test.labels).all()


def test_examples_of_a_class_differ_between_and_within_the_splits():
    dataset = make().load()
    images = np.concatenate([dataset.train.images, dataset.test.images])
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == 105


def test_the_draws_depend_on_the_data_seed_only(monkeypatch: pytest.MonkeyPatch):
    first = make().load()
    monkeypatch.setattr(synthetic, "_WORDS_PER_CHUNK", 1)
    again, other = make().load(), make(data_seed=1).load()
    np.testing.assert_array_equal(first.train.images, again.train.images)
    assert not np.array_equal(first.train.images, other.train.images)


def test_a_shorter_dataset_is_the_beginning_of_a_longer_one():
    np.testing.assert_array_equal(make(examples=20).load().train.images, make(examples=70).load().train.images[:20])


def test_normalised_images_have_about_mean_0_and_deviation_1():
    dataset = make(shape=[3, 32, 32]).load()
    x = dataset.normalisation.apply(dataset.train.images, np.dtype("float64"))
    assert abs(x.mean()) < 0.1
    assert abs(x.std() - 1.0) < 0.1


def test_a_shape_without_channels_is_refused():
    with pytest.raises(ConfigError, match=r"data\.shape=\[3, 224\]: expected three sizes, \[channels, height, width\]"):
        make(shape=[3, 224])
