"""Settings from plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Optional

import pytest
from omegaconf import OmegaConf

from runner.data import DATASETS
from runner.data.augment import Augment
from runner.data.schema import from_plain
from runner.data.synthetic import Synthetic
from runner.errors import ConfigError


def test_keys_left_out_keep_their_defaults():
    settings = from_plain(Synthetic, {"classes": 3, "augment": {"flip": True}}, "data")
    assert settings == Synthetic(classes=3, augment=Augment(crop_padding=0, flip=True))


@dataclass
class Fraction:
    """A schema with a real number."""

    value: float = 0.0


def test_a_whole_number_does_for_a_real_one():
    value = from_plain(Fraction, {"value": 2}, "data").value
    assert isinstance(value, float)
    assert value == 2.0


@dataclass
class OlderSpelling:
    """A schema as one of a plugin may be."""

    limit: Optional[int] = None  # noqa: UP045
    sizes: Optional[list[int]] = None  # noqa: UP045


def test_optional_is_another_word_for_a_union_with_none():
    assert from_plain(OlderSpelling, {"limit": 3, "sizes": [1]}, "data") == OlderSpelling(3, [1])
    assert from_plain(OlderSpelling, {"limit": None}, "data") == OlderSpelling()
    with pytest.raises(ConfigError, match=r"data\.limit is 'x', a str; expected .*int"):
        from_plain(OlderSpelling, {"limit": "x"}, "data")


@pytest.mark.parametrize("name", DATASETS)
def test_what_hydra_hands_over_comes_back_unchanged(name: str):
    schema = DATASETS[name]
    composed = OmegaConf.merge(OmegaConf.structured(schema), {"augment": {"crop_padding": 2}})
    plain = OmegaConf.to_container(composed, resolve=True)
    settings = from_plain(schema, plain, "data")
    assert asdict(settings) == plain
    assert settings == OmegaConf.to_object(composed)


@pytest.mark.parametrize("name", DATASETS)
def test_the_name_in_the_table_is_the_first_field(name: str):
    assert next(iter(asdict(DATASETS[name]()).items())) == ("name", name)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (
            {"clases": 3},
            r"unknown key data\.clases; the keys of data are: name, .*, train_limit, test_limit, val_fraction, shape",
        ),
        (
            {"augment": {"crop": 3}},
            r"unknown key data\.augment\.crop; the keys of data\.augment are: crop_padding",
        ),
        ({"augment": True}, r"data\.augment is True, a bool; expected Augment"),
        ({"classes": "3"}, r"data\.classes is '3', a str; expected int"),
        ({"classes": True}, r"data\.classes is True, a bool; expected int"),
        ({"shape": [3, 2.5, 1]}, r"data\.shape\[1\] is 2\.5, a float; expected int"),
        ({"shape": "3x4x5"}, r"data\.shape is '3x4x5', a str; expected list\[int\]"),
        ({"cache_dir": 7}, r"data\.cache_dir is 7, a int; expected str \| None"),
        ({"augment": {"flip": 1}}, r"data\.augment\.flip is 1, a int; expected bool"),
        ({"classes": 0}, r"data\.classes=0: expected 1 to 1000000"),
        ({"augment": {"crop_padding": -1}}, r"data\.augment\.crop_padding=-1: expected 0 to 65536"),
    ],
)
def test_wrong_keys_and_types_are_refused(plain: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        from_plain(Synthetic, plain, "data")
