"""Batches and random augmentation of images; both depend only on seed, split, step and positions in the batch."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runner.data import Mnist
from runner.data.augmentation import Augment
from runner.data.dataset import Dataset, Normalisation, Split
from runner.data.pipeline import Batch, Pipeline
from runner.data.streamed import MappedSplit
from runner.errors import ConfigError
from runner.fields import BEGINS
from runner.kernels import philox

FIELDS = ("x", "y", "index", "mask")
ALL_AUGMENTS = Augment(crop_padding=1, flip=True)


def make_pipeline(
    examples: int = 13,
    batch_size: int = 5,
    seed: int = 0,
    augment: Augment | None = None,
    dtype: str = "float32",
    test_examples: int = 7,
    val_fraction: float = 0.0,
) -> Pipeline:
    """Return a pipeline whose labels are the numbers of the examples; images are noise of shape (2, 4, 5)."""

    def split(size: int) -> Split:
        images = np.random.default_rng(size).integers(1, 256, (size, 2, 4, 5), np.uint8)
        return Split({"x": images, "y": np.arange(size, dtype=np.int64)})

    dataset = Dataset("toy", split(examples), split(test_examples), Normalisation(255.0, (0.1, 0.2), (0.5, 0.6)))
    return Pipeline(dataset, seed=seed, batch_size=batch_size, dtype=dtype, augment=augment, val_fraction=val_fraction)


def stream(pipeline: Pipeline, batch_size: int, positions: int) -> NDArray[np.int64]:
    """Return the labels of the first ``positions`` train examples, read batch by batch."""
    steps = -(-positions // batch_size)
    return np.concatenate([pipeline.read("train", s, 0, batch_size)["y"] for s in range(steps)])[:positions]


def joined(batches: list[Batch]) -> dict[str, NDArray[Any]]:
    """Return the concatenated fields of ``batches``."""
    return {field: np.concatenate([batch[field] for batch in batches]) for field in FIELDS}


def assert_same(left: Batch, right: Batch) -> None:
    """Require equal keys, dtypes and values."""
    assert set(left) == set(right) == set(FIELDS)
    for field in FIELDS:
        assert left[field].dtype == right[field].dtype
        np.testing.assert_array_equal(left[field], right[field], err_msg=field)


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(1, 50), st.integers(0, 2**31))
def test_every_epoch_is_a_permutation_and_nothing_is_dropped(examples: int, batch_size: int, seed: int):
    seen = stream(make_pipeline(examples, batch_size, seed), batch_size, 4 * examples)
    for epoch in seen.reshape(4, examples):
        assert sorted(epoch) == list(range(examples))


def test_the_order_of_examples_is_the_documented_one():
    seen = stream(make_pipeline(13, 5, seed=3), 5, 26)
    expected = [philox.permutation(philox.key(3, f"toy/epoch/{epoch}"), 13) for epoch in (0, 1)]
    np.testing.assert_array_equal(seen, np.concatenate(expected))
    assert not np.array_equal(expected[0], expected[1])
    np.testing.assert_array_equal(stream(make_pipeline(7, 7), 7, 7), [2, 0, 3, 4, 6, 5, 1])


@settings(deadline=None)
@given(
    st.sampled_from([("train", 0.0), ("train", 0.3), ("test", 0.0), ("val", 0.3)]),
    st.integers(0, 6),
    st.integers(1, 30),
    st.integers(1, 8),
    st.integers(0, 2**31),
)
def test_shares_make_up_the_batch(split: tuple[str, float], step: int, batch_size: int, workers: int, seed: int):
    def read(lo: int, hi: int) -> Batch:
        # A new pipeline each time, as in another process.
        pipeline = make_pipeline(13, batch_size, seed, ALL_AUGMENTS, val_fraction=split[1])
        return pipeline.read(split[0], step, lo, hi)

    ends = [batch_size * k // workers for k in range(workers + 1)]
    assert_same(joined(list(itertools.starmap(read, itertools.pairwise(ends)))), read(0, batch_size))


def test_reading_out_of_order_changes_nothing():
    in_order, backwards = make_pipeline(augment=ALL_AUGMENTS), make_pipeline(augment=ALL_AUGMENTS)
    expected = [in_order.read("train", step, 0, 5) for step in range(9)]
    for step in reversed(range(9)):
        assert_same(backwards.read("train", step, 0, 5), expected[step])


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("kind", "together"),
    [
        ({}, True),
        ({"val_fraction": 0.25}, True),
        ({"augment": ALL_AUGMENTS}, False),
        ({"threads": 2}, False),
        ({"domains": [0, 1] * 10}, False),
        ({"sequence": True}, False),
        ({"type": MappedSplit}, False),
        ({"sides": (400, 400)}, False),
    ],
)
def test_batches_of_several_steps_equal_single_ones(kind: dict[str, Any], together: bool, split: str):
    random, chosen = np.random.default_rng(3), dict(kind)
    arrays = {"x": random.integers(1, 256, (20, 2, *chosen.pop("sides", (4, 5))), np.uint8), "y": np.arange(20)}
    if chosen.pop("sequence", False):
        arrays[BEGINS] = np.eye(1, 20, dtype=np.int64)[0]
    domains = chosen.pop("domains", None)
    examples = chosen.pop("type", Split)(arrays, None if domains is None else np.array(domains))
    dataset = Dataset("toy", examples, examples, Normalisation(255.0, (0.1, 0.2), (0.5, 0.6)))
    pipeline = Pipeline(dataset, seed=3, batch_size=7, dtype="float32", **chosen)
    assert (pipeline.steps_together(5) > 1) == together
    for step, batch in zip(range(2, 9), pipeline.read_steps(split, range(2, 9), 1, 6), strict=True):
        alone = pipeline.read(split, step, 1, 6)
        assert batch.keys() == alone.keys()
        for name, values in batch.items():
            assert values.dtype == alone[name].dtype
            np.testing.assert_array_equal(values, alone[name], err_msg=name)
    pipeline.close()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
def test_fields_have_the_documented_shapes_types_and_positions_and_images_are_normalised(dtype: str, tolerance: float):
    batch = make_pipeline(dtype=dtype).read("train", 7, 1, 4)
    assert [batch[field].dtype for field in FIELDS] == [dtype, "int64", "int64", dtype]
    np.testing.assert_array_equal(batch["index"], [36, 37, 38])
    np.testing.assert_array_equal(batch["mask"], [1, 1, 1])
    images = np.random.default_rng(13).integers(1, 256, (13, 2, 4, 5), np.uint8)[batch["y"]]
    mean, std = np.array([0.1, 0.2])[:, None, None], np.array([0.5, 0.6])[:, None, None]
    np.testing.assert_allclose(batch["x"], (images / 255.0 - mean) / std, rtol=tolerance, atol=tolerance)


def test_augmentation_differs_between_seeds_and_epochs_and_keeps_the_order():
    plain, varied = make_pipeline(8, 8), make_pipeline(8, 8, augment=ALL_AUGMENTS)
    first, second = (varied.read("train", step, 0, 8) for step in (0, 1))
    np.testing.assert_array_equal(first["y"], plain.read("train", 0, 0, 8)["y"])
    reseeded = make_pipeline(8, 8, seed=1, augment=ALL_AUGMENTS).read("train", 0, 0, 8)
    batches = (plain.read("train", 0, 0, 8), first, second, reseeded)
    by_example = [batch["x"][np.argsort(batch["y"])] for batch in batches]
    for i, j in itertools.combinations(range(4), 2):
        assert not np.array_equal(by_example[i], by_example[j])


@pytest.mark.parametrize("split", ["test", "val"])
def test_images_of_evaluations_are_never_augmented(split: str):
    plain, varied = (make_pipeline(20, augment=each, val_fraction=0.3) for each in (None, ALL_AUGMENTS))
    assert_same(varied.read(split, 0, 0, 5), plain.read(split, 0, 0, 5))


def test_the_last_evaluation_batch_is_padded_and_masked():
    batch = make_pipeline(test_examples=7, batch_size=5).read("test", 1, 0, 5)
    np.testing.assert_array_equal(batch["mask"], [1, 1, 0, 0, 0])
    np.testing.assert_array_equal(batch["y"], [5, 6, 6, 6, 6])
    np.testing.assert_array_equal(batch["index"], [5, 6, 7, 8, 9])
    np.testing.assert_array_equal(batch["x"][2:], batch["x"][[1, 1, 1]])
    after = make_pipeline(test_examples=7, batch_size=5).read("test", 9, 0, 5)
    assert not after["mask"].any()


def test_unknown_split_is_refused_with_the_options():
    with pytest.raises(ValueError, match="unknown split 'val'; the splits are 'train', 'test'"):
        make_pipeline().read("val", 0, 0, 5)


@pytest.mark.parametrize(("step", "lo", "hi"), [(-1, 0, 5), (0, -1, 5), (0, 3, 2), (0, 0, 6)])
def test_a_share_outside_the_batch_is_refused(step: int, lo: int, hi: int):
    with pytest.raises(ValueError, match="does not exist: a batch has 5 examples"):
        make_pipeline().read("train", step, lo, hi)


def test_a_validation_split_is_taken_from_train_and_read_like_test():
    pipeline = make_pipeline(20, 5, val_fraction=0.3, augment=ALL_AUGMENTS)
    batches = joined([pipeline.read("val", step, 0, 5) for step in range(2)])
    np.testing.assert_array_equal(batches["mask"], [1] * 6 + [0] * 4)
    held_out = set(batches["y"][:6].tolist())
    trained = stream(pipeline, 5, 28)
    assert sorted(trained[:14]) == sorted(trained[14:]) == sorted(set(range(20)) - held_out)
    assert held_out != set(make_pipeline(20, 6, seed=1, val_fraction=0.3).read("val", 0, 0, 6)["y"].tolist())


def by_hand(image: NDArray[np.uint8], padding: int, flip: bool, draws: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return one (C, H, W) image, cropped and reflected. draws: random numbers for crop row, crop column and mirror."""
    channels, height, width = image.shape
    canvas = np.zeros((channels, height + 2 * padding, width + 2 * padding), np.uint8)
    canvas[:, padding : padding + height, padding : padding + width] = image
    top, left = int(draws[0] * (2 * padding + 1)), int(draws[1] * (2 * padding + 1))
    cut = canvas[:, top : top + height, left : left + width]
    return cut[:, :, ::-1] if flip and draws[2] < 0.5 else cut


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [False, True])
def test_an_augmented_batch_equals_images_augmented_one_by_one(padding: int, flip: bool):
    rng = np.random.default_rng(0)
    images = rng.integers(1, 256, (40, 3, 5, 7), np.uint8)
    draws = rng.random((40, 3))
    expected = np.stack([by_hand(*pair) for pair in zip(images, [padding] * 40, [flip] * 40, draws, strict=True)])
    np.testing.assert_array_equal(Augment(padding, flip).apply(images, draws), expected)


def test_the_smallest_and_largest_draws_select_the_first_and_last_crop():
    image = np.arange(1, 10, dtype=np.uint8).reshape(1, 3, 3)
    draws = np.array([[0.0, 0.0, 0.0], [1 - 2**-32] * 3])
    first, last = Augment(1, True).apply(np.stack([image, image]), draws)
    assert first[0].tolist() == [[0, 0, 0], [2, 1, 0], [5, 4, 0]]
    assert last[0].tolist() == [[5, 6, 0], [8, 9, 0], [0, 0, 0]]


def test_padding_must_leave_part_of_the_image_in_every_crop():
    with pytest.raises(ConfigError, match=r"crop_padding=28: expected less than 28 pixels for dataset 'mnist'"):
        Mnist(augment=Augment(crop_padding=28))
