"""The digits of scikit-learn, read from its file."""

import gzip
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from runner.data import digits
from runner.data.digits import Digits
from runner.errors import DataError

# Of the 178 182 177 183 181 182 181 179 174 180 images per class, a fifth each, rounded.
TEST_COUNTS = [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]


def test_default_split_has_the_stated_counts_of_every_class():
    dataset = Digits().load()
    assert np.bincount(dataset.test.labels).tolist() == TEST_COUNTS
    assert (len(dataset.train), len(dataset.test)) == (1438, 359)
    assert dataset.facts == Digits().facts()


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 0.999])
def test_facts_are_known_before_loading(fraction: float):
    settings = Digits(test_fraction=fraction)
    assert settings.load().facts == settings.facts()


def test_splits_are_parts_of_the_same_images():
    first, second = Digits(split_seed=0).load(), Digits(split_seed=1).load()

    def images(dataset: object) -> list[bytes]:
        splits = (dataset.train, dataset.test)  # type: ignore[attr-defined]
        return sorted(image.tobytes() for split in splits for image in split.images)

    assert images(first) == images(second)
    assert len(set(images(first))) == 1797
    assert not np.array_equal(first.test.images, second.test.images)


def test_the_pictures_go_with_the_labels():
    dataset = Digits().load()
    centroids = np.stack([dataset.train.images[dataset.train.labels == c].mean(0) for c in range(10)])
    distance = ((dataset.test.images[:, None] - centroids[None]) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == dataset.test.labels).mean() > 0.85


def test_scikit_learn_is_not_imported():
    load = "import sys; from runner.data.digits import Digits; Digits().load()"
    code = f"{load}; sys.exit('sklearn' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_missing_scikit_learn_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(digits, "find_spec", lambda _: None)
    with pytest.raises(DataError, match="'digits' is read from scikit-learn, which is not installed"):
        Digits().load()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read dataset 'digits' from .*No such file"),
        (b"not compressed", "cannot read dataset 'digits' from .*digits.csv.gz: Not a gzipped file"),
        (gzip.compress(b"1,2,3\n", mtime=0)[:-3], "cannot read dataset 'digits' from"),
        (gzip.compress(b"1,2,many\n", mtime=0), "cannot read dataset 'digits' from"),
        (
            gzip.compress(b"1,2,3\n", mtime=0),
            "does not hold the known digits: SHA-256 of its table is [0-9a-f]{64}, expected",
        ),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, message: str):
    folder = tmp_path / "datasets" / "data"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "digits.csv.gz").write_bytes(content)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(digits, "find_spec", lambda _: spec)
    with pytest.raises(DataError, match=message):
        Digits().load()
