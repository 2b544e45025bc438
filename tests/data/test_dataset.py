"""Datasets without user files, limits on the number of examples, and splits that keep the proportions of classes."""

import gzip
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.data import Digits, Synthetic, digits, synthetic
from runner.data.dataset import Dataset, held_out, stratified_split, validation_split
from runner.data.settings import DatasetSettings, limited_facts, load_limited
from runner.errors import ConfigError, DataError

# A fifth of the 178 182 177 183 181 182 181 179 174 180 images per class, rounded.
TEST_COUNTS = [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]


def made(**changes: object) -> Synthetic:
    """Return a small synthetic dataset; ``changes`` replaces some of its settings."""
    return Synthetic(**{"shape": [3, 9, 13], "classes": 7, "examples": 70, "test_examples": 35, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        *(Digits(test_fraction=fraction) for fraction in (0.001, 0.1, 0.2, 0.5, 0.999)),
        *(made(shape=shape) for shape in ([3, 9, 13], [1, 1, 1], [2, 32, 8])),
    ],
)
def test_facts_are_known_before_loading(settings: DatasetSettings) -> None:
    dataset, facts = settings.load(), settings.facts()
    for split, count in ((dataset.train, facts.train_examples), (dataset.test, facts.test_examples)):
        shapes = {name: (count, *field.shape) for name, field in facts.fields.items()}
        assert {name: values.shape for name, values in split.arrays.items()} == shapes
        assert split["y"].max() < facts.classes


def test_default_split_has_the_stated_counts_of_every_class() -> None:
    dataset = Digits().load()
    assert np.bincount(dataset.test["y"]).tolist() == TEST_COUNTS
    assert (len(dataset.train), len(dataset.test)) == (1438, 359)
    assert made().facts().shape == (3, 9, 13)


def test_all_split_seeds_divide_the_same_images() -> None:
    first, second = Digits(split_seed=0).load(), Digits(split_seed=1).load()

    def images(dataset: Dataset) -> list[bytes]:
        return sorted(image.tobytes() for split in (dataset.train, dataset.test) for image in split["x"])

    assert images(first) == images(second)
    assert len(set(images(first))) == 1797
    assert not np.array_equal(first.test["x"], second.test["x"])


@pytest.mark.parametrize(("settings", "least"), [(Digits(), 0.85), (made(), 1.0)])
def test_most_images_are_nearest_to_the_mean_of_their_class(settings: DatasetSettings, least: float) -> None:
    dataset, classes = settings.load(), settings.facts().classes
    centroids = np.stack([dataset.train["x"][dataset.train["y"] == c].mean(0) for c in range(classes)])
    distance = ((dataset.test["x"][:, None] - centroids[None]) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == dataset.test["y"]).mean() >= least


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
        (
            gzip.compress(b"1,2,3\n", mtime=0),
            "is not the table of digits of scikit-learn: SHA-256 of its table is [0-9a-f]{64}, expected",
        ),
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
    images = np.concatenate([dataset.train["x"], dataset.test["x"]])
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == 105


def test_synthetic_images_depend_on_the_data_seed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    first, fewer = made().load().train["x"], made(examples=20).load().train["x"]
    monkeypatch.setattr(synthetic, "_WORDS_PER_CHUNK", 1)
    np.testing.assert_array_equal(made().load().train["x"], first)
    np.testing.assert_array_equal(fewer, first[:20])
    assert not np.array_equal(made(data_seed=1).load().train["x"], first)


def test_normalised_synthetic_images_have_about_mean_0_and_deviation_1() -> None:
    dataset = made(shape=[3, 32, 32]).load()
    x = dataset.normalisation.apply(dataset.train["x"], np.dtype("float64"))
    assert abs(x.mean()) < 0.1
    assert abs(x.std() - 1.0) < 0.1


def test_a_shape_without_channels_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.shape=\[3, 224\]: expected three sizes, \[channels, height, width\]"):
        made(shape=[3, 224])


def limited(**limits: int | None) -> Synthetic:
    """Return a dataset of 40 train and 20 test examples in four classes, with limits."""
    return made(shape=[1, 2, 2], classes=4, examples=40, test_examples=20, **limits)


@pytest.mark.parametrize(
    ("limits", "train", "test"),
    [({}, 40, 20), ({"train_limit": 10, "test_limit": 7}, 10, 7), ({"train_limit": 41, "test_limit": 21}, 40, 20)],
)
def test_both_splits_and_the_facts_are_limited(limits: dict[str, int], train: int, test: int) -> None:
    settings = limited(**limits)
    dataset = load_limited(settings)
    facts = limited_facts(settings)
    assert (len(dataset.train), len(dataset.test)) == (train, test) == (facts.train_examples, facts.test_examples)


def test_limited_examples_are_spread_over_the_split() -> None:
    whole, few = load_limited(limited()).train, load_limited(limited(train_limit=8)).train
    assert np.array_equal(few["x"], whole["x"][::5])
    assert np.array_equal(few["y"], whole["y"][::5])
    assert set(load_limited(Digits(train_limit=40)).train["y"]) == set(range(10))


CLASS_SIZES = st.lists(st.integers(2, 40), min_size=1, max_size=6)


@settings(deadline=None)
@given(CLASS_SIZES, st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_every_class_is_split_separately(sizes: list[int], fraction: float, seed: int):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    kept, out = stratified_split(labels, fraction, seed, "x")
    assert sorted([*kept, *out]) == list(range(len(labels)))
    for label, size in enumerate(sizes):
        count = int((labels[out] == label).sum())
        assert count == held_out(size, fraction)
        assert 1 <= count < size
        assert abs(count - size * fraction) <= 1


@settings(deadline=None)
@given(CLASS_SIZES, st.data(), st.integers(0, 2**31))
def test_a_validation_split_keeps_the_shares_of_the_classes(sizes: list[int], data: st.DataObject, seed: int):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    examples = data.draw(st.integers(1, len(labels) - len(sizes)))
    kept, out = validation_split(labels, examples, seed, "x")
    assert sorted([*kept, *out]) == list(range(len(labels)))
    assert len(out) == examples
    counts = np.bincount(labels[out], minlength=len(sizes))
    assert (counts < sizes).all(), "no class is emptied"
    shares = np.array(sizes) * examples / len(labels)
    excess, able = counts - shares, counts + 1 < np.array(sizes)
    assert (excess > -1).all()
    # If another class gave an example in place of the class with the largest excess, the largest excess would not fall.
    assert excess.max() <= min(excess[able] + 1, default=len(labels)) + 1e-9


@pytest.mark.parametrize(
    ("sizes", "examples", "held"),
    [([2, 2, 9], 10, [1, 1, 8]), ([1, 1, 4], 3, [0, 0, 3]), ([1, 1, 4], 5, [1, 1, 3])],
)
def test_a_class_is_emptied_only_if_no_class_has_two_examples_left(sizes: list[int], examples: int, held: list[int]):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    out = validation_split(labels, examples, 0, "x")[1]
    assert np.bincount(labels[out], minlength=len(sizes)).tolist() == held


def test_classes_with_the_largest_remainders_get_one_more_example():
    labels = np.repeat([0, 1, 2, 3], [10, 14, 9, 7])
    out = validation_split(labels, 10, 0, "x")[1]
    # A quarter of each class is 2.5, 3.5, 2.25 and 1.75; a random draw decides which of the first two is rounded up.
    assert np.bincount(labels[out]).tolist() in ([3, 3, 2, 2], [2, 4, 2, 2])


def test_a_random_draw_decides_which_classes_of_one_example_become_empty():
    splits = [validation_split(np.arange(10), 3, seed, "x") for seed in range(5)]
    assert {(len(kept), len(out)) for kept, out in splits} == {(7, 3)}
    assert len({tuple(out) for _, out in splits}) > 1


def test_the_two_kinds_of_splits_depend_on_the_seed_and_differ_from_each_other():
    labels = np.repeat(np.arange(10), 30)
    ways = ((stratified_split, 0.2), (validation_split, 60))
    draws = [[split(labels, size, seed, "x")[1] for split, size in ways] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert len({each.tobytes() for pair in draws for each in pair}) == 4
