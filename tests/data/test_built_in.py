"""Datasets without files of the user or downloads: the digits of scikit-learn, and synthetic images."""

import gzip
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from runner.data import digits, synthetic
from runner.data.dataset import Dataset
from runner.data.digits import Digits
from runner.data.settings import DatasetSettings
from runner.data.synthetic import Synthetic
from runner.errors import ConfigError, DataError

# Of the 178 182 177 183 181 182 181 179 174 180 images per class, a fifth each, rounded.
TEST_COUNTS = [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]


def made(**changes: object) -> Synthetic:
    """Return small settings of synthetic images with some changed."""
    return Synthetic(**{"shape": [3, 9, 13], "classes": 7, "examples": 70, "test_examples": 35, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        *(Digits(test_fraction=fraction) for fraction in (0.001, 0.1, 0.2, 0.5, 0.999)),
        *(made(shape=shape) for shape in ([3, 9, 13], [1, 1, 1], [2, 32, 8])),
    ],
)
def test_facts_are_known_before_loading(settings: DatasetSettings) -> None:
    assert settings.load().facts == settings.facts()


def test_default_split_has_the_stated_counts_of_every_class() -> None:
    dataset = Digits().load()
    assert np.bincount(dataset.test.labels).tolist() == TEST_COUNTS
    assert (len(dataset.train), len(dataset.test)) == (1438, 359)
    assert made().facts().shape == (3, 9, 13)


def test_splits_are_parts_of_the_same_images() -> None:
    first, second = Digits(split_seed=0).load(), Digits(split_seed=1).load()

    def images(dataset: Dataset) -> list[bytes]:
        return sorted(image.tobytes() for split in (dataset.train, dataset.test) for image in split.images)

    assert images(first) == images(second)
    assert len(set(images(first))) == 1797
    assert not np.array_equal(first.test.images, second.test.images)


@pytest.mark.parametrize(("settings", "least"), [(Digits(), 0.85), (made(), 1.0)])
def test_the_nearest_mean_of_a_class_is_that_of_the_label(settings: DatasetSettings, least: float) -> None:
    dataset, classes = settings.load(), settings.facts().classes
    centroids = np.stack([dataset.train.images[dataset.train.labels == c].mean(0) for c in range(classes)])
    distance = ((dataset.test.images[:, None] - centroids[None]) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == dataset.test.labels).mean() >= least


def test_scikit_learn_is_not_imported() -> None:
    load = "import sys; from runner.data.digits import Digits; Digits().load()"
    subprocess.run([sys.executable, "-c", f"{load}; sys.exit('sklearn' in sys.modules)"], check=True, timeout=60)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read dataset 'digits' from .*No such file"),
        (b"not compressed", "cannot read dataset 'digits' from .*digits.csv.gz: Not a gzipped file"),
        (gzip.compress(b"1,2,3\n", mtime=0)[:-3], "cannot read dataset 'digits' from"),
        (gzip.compress(b"1,2,many\n", mtime=0), "cannot read dataset 'digits' from"),
        (gzip.compress(b"1,2,3\n"), "does not hold the known digits: SHA-256 of its table is [0-9a-f]{64}, expected"),
    ],
)
def test_a_damaged_file_and_a_missing_scikit_learn_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, message: str
) -> None:
    folder = tmp_path / "datasets" / "data"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "digits.csv.gz").write_bytes(content)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(digits, "find_spec", lambda _: spec)
    with pytest.raises(DataError, match=message):
        Digits().load()
    monkeypatch.setattr(digits, "find_spec", lambda _: None)
    with pytest.raises(DataError, match="'digits' is read from scikit-learn, which is not installed"):
        Digits().load()


def test_synthetic_examples_of_a_class_differ_between_and_within_the_splits() -> None:
    dataset = made().load()
    images = np.concatenate([dataset.train.images, dataset.test.images])
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == 105


def test_the_draws_depend_on_the_data_seed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    first, fewer = made().load().train.images, made(examples=20).load().train.images
    monkeypatch.setattr(synthetic, "_WORDS_PER_CHUNK", 1)
    np.testing.assert_array_equal(made().load().train.images, first)
    np.testing.assert_array_equal(fewer, first[:20])
    assert not np.array_equal(made(data_seed=1).load().train.images, first)


def test_normalised_synthetic_images_have_about_mean_0_and_deviation_1() -> None:
    dataset = made(shape=[3, 32, 32]).load()
    x = dataset.normalisation.apply(dataset.train.images, np.dtype("float64"))
    assert abs(x.mean()) < 0.1
    assert abs(x.std() - 1.0) < 0.1


def test_a_shape_without_channels_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.shape=\[3, 224\]: expected three sizes, \[channels, height, width\]"):
        made(shape=[3, 224])
