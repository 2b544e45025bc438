"""A worker's source from the plain configuration."""

from __future__ import annotations

import numpy as np
import pytest

from runner.data.digits import Digits
from runner.data.source import settings_from_config, source_from_config
from runner.errors import ConfigError


def test_digits_arrive_as_batches():
    with source_from_config({"name": "digits"}, seed=0, batch_size=64, dtype="float64") as source:
        batch = source.read("train", 0, 16, 48)
    assert batch["x"].shape == (32, 1, 8, 8)
    assert batch["x"].dtype == np.float64
    assert (batch["x"].min(), batch["x"].max()) == (0.0, 1.0)


def test_every_setting_reaches_the_batches():
    plain = {"name": "synthetic", "shape": [1, 6, 6], "classes": 3, "examples": 9, "test_examples": 3}
    varied = {**plain, "augment": {"crop_padding": 2, "flip": True}}
    batches = []
    for config, seed in ((plain, 0), (varied, 0), (varied, 1)):
        with source_from_config(config, seed=seed, batch_size=9, dtype="float32") as source:
            batches.append(source.read("train", 0, 0, 9)["x"])
    assert not np.array_equal(batches[0], batches[1])
    assert not np.array_equal(batches[1], batches[2])


def test_no_cache_folder_is_a_setting_too():
    settings = settings_from_config({"name": "digits", "test_fraction": 0.5, "cache_dir": None})
    assert settings == Digits(test_fraction=0.5)


@pytest.mark.parametrize("config", [{"name": "imagenet"}, {}, {"name": 3}])
def test_unknown_dataset_is_refused_with_the_options(config: dict[str, object]):
    with pytest.raises(
        ConfigError,
        match=r"unknown dataset: data\.name is .*; "
        r"the datasets are: digits, synthetic, mnist, fashion_mnist, cifar10",
    ):
        settings_from_config(config)


def test_key_of_another_dataset_is_refused_with_the_options():
    with pytest.raises(ConfigError, match=r"unknown key data\.classes; the keys of data are: name, augment, cache_dir"):
        settings_from_config({"name": "mnist", "classes": 10})
