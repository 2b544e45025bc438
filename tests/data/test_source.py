"""A worker's source from the plain configuration."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Optional

import numpy as np
import pytest
from omegaconf import OmegaConf

from runner.data import DATASETS
from runner.data.augment import Augment
from runner.data.dataset import Dataset, Facts
from runner.data.digits import Digits
from runner.data.settings import DatasetSettings
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
        r"expected one of digits, synthetic, mnist, fashion_mnist, cifar10",
    ):
        settings_from_config(config)


@dataclass
class OfAPlugin(DatasetSettings):
    """Settings as those of a plugin may be."""

    limit: Optional[int] = None  # noqa: UP045
    sizes: Optional[list[int]] = None  # noqa: UP045
    rate: float = 0.0

    def facts(self) -> Facts:
        return Facts((1, 2, 2), ("a",), 2, 2)

    def load(self) -> Dataset:
        raise NotImplementedError


def test_settings_of_a_plugin_are_read_by_their_annotations(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DATASETS, "own", OfAPlugin)
    read = settings_from_config({"name": "own", "limit": 3, "sizes": [1], "rate": 2, "augment": {"flip": True}})
    assert read == OfAPlugin("own", Augment(flip=True), limit=3, sizes=[1], rate=2.0)
    assert type(read.rate) is float
    with pytest.raises(ConfigError, match=r"data\.limit: 'x', expected a whole number"):
        settings_from_config({"name": "own", "limit": "x"})


@pytest.mark.parametrize("name", DATASETS)
def test_the_composed_section_of_a_dataset_is_read_unchanged(name: str):
    composed = OmegaConf.merge(OmegaConf.structured(DATASETS[name]), {"augment": {"crop_padding": 2}})
    plain = OmegaConf.to_container(composed, resolve=True)
    settings = settings_from_config(plain)
    assert asdict(settings) == plain
    assert settings == OmegaConf.to_object(composed)
    assert next(iter(plain.items())) == ("name", name), "the name is the first field"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clases": 3}, r"data: unknown \['clases'\], expected the fields name, .*, val_fraction, shape"),
        ({"augment": {"crop": 3}}, r"data\.augment: unknown \['crop'\], expected the fields crop_padding, flip"),
        ({"augment": True}, r"data\.augment: True, expected a map of crop_padding"),
        ({"shape": [3, 2.5, 1]}, r"data\.shape\[1\]: 2\.5, expected a whole number"),
        ({"shape": "3x4x5"}, r"data\.shape: '3x4x5', expected a list"),
        ({"cache_dir": 7}, r"data\.cache_dir: 7, expected text"),
        ({"augment": {"flip": 1}}, r"data\.augment\.flip: 1, expected true or false"),
        ({"classes": 0}, r"data\.classes: 0, expected 1 to 1000000"),
    ],
)
def test_wrong_keys_types_and_numbers_are_refused(change: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        settings_from_config({"name": "synthetic", **change})
