"""Random draws depend only on seed, key, step and index; the generator gives the published outputs."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from runner.engine.graph import TensorSpec
from runner.engine.graph.variables import Part
from runner.kernels import philox
from runner.kernels.contract import Array
from runner.kernels.reference.structural import dropout_mask, random_normal, random_uniform

STREAM: dict[str, Any] = {"seed": 3, "key": "fc1/dropout"}


def _mask(index: list[int], step: int = 0, rate: float = 0.3, width: int = 500, **changes: Any) -> Array:
    attributes = {"shape": (len(index), width), "dtype": "float64", "rate": rate, "first": 0, **STREAM, **changes}
    mask: Array = dropout_mask(np.asarray(step, np.int64), np.asarray(index, np.int64), **attributes)
    return mask


def test_a_row_of_a_mask_does_not_depend_on_other_rows() -> None:
    whole = _mask([10, 11, 12, 13])
    np.testing.assert_array_equal(np.concatenate([_mask([10, 11]), _mask([12, 13])]), whole)
    np.testing.assert_array_equal(_mask([13, 10]), whole[[3, 0]])


@pytest.mark.parametrize(("first", "width"), [(0, 7), (5, 8), (13, 1), (499, 1)])
def test_columns_of_a_mask_equal_those_of_the_whole_mask(first: int, width: int) -> None:
    np.testing.assert_array_equal(_mask([4, 9], first=first, width=width), _mask([4, 9])[:, first : first + width])


@pytest.mark.parametrize(
    "other", [{"step": 1}, {"index": [11]}, {"seed": 4}, {"key": "fc2/dropout"}], ids=lambda change: next(iter(change))
)
def test_every_part_of_the_key_changes_the_mask(other: dict[str, Any]) -> None:
    assert (_mask(**{"index": [10], **other}) != _mask([10])).any()


def test_a_mask_drops_at_its_rate_and_keeps_the_mean() -> None:
    mask = _mask(list(range(100)), rate=0.3, width=1000)
    assert set(np.unique(mask)) == {0.0, 1 / 0.7}
    assert np.mean(mask == 0) == pytest.approx(0.3, abs=0.005)
    assert mask.mean() == pytest.approx(1.0, abs=0.01)
    assert (_mask([1, 2], rate=0.0) == 1.0).all()
    assert _mask([1, 2], shape=(2, 3, 4, 5)).shape == (2, 3, 4, 5)


def test_draws_fill_their_interval_and_have_the_expected_moments() -> None:
    draws = random_uniform(shape=(100, 100), dtype="float64", low=-2.0, high=3.0, **STREAM)
    assert -2.0 <= draws.min() < -1.99
    assert 2.99 < draws.max() < 3.0
    assert draws.mean() == pytest.approx(0.5, abs=0.05)
    draws = random_normal(shape=(100, 100), dtype="float64", mean=2.0, stddev=0.5, **STREAM)
    assert draws.mean() == pytest.approx(2.0, abs=0.02)
    assert draws.std() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("shape", [(700, 300), (3, 70_000), (4, 5, 6)])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_part_has_the_draws_of_the_whole(shape: tuple[int, ...], axis: int) -> None:
    stream = {**STREAM, "dtype": "float32", "low": -2.0, "high": 3.0}
    # The expected values are computed in one block, without chunks.
    draws = philox.uniform(philox.key(STREAM["seed"], STREAM["key"]), np.zeros(1, np.int64), math.prod(shape))
    whole = (-2.0 + 5.0 * draws).astype(np.float32).reshape(shape)
    np.testing.assert_array_equal(random_uniform(shape=shape, **stream), whole)
    part = Part(TensorSpec(shape, "float32"), axis, 1, shape[axis] - 1)
    cut = whole[tuple(slice(1, -1) if k == axis else slice(None) for k in range(len(shape)))]
    np.testing.assert_array_equal(random_uniform(shape=part.spec.shape, part=part.elements, **stream), cut)


@pytest.mark.parametrize(
    ("draw", "parameters"),
    [(random_uniform, {"low": -0.1, "high": 0.1}), (random_normal, {"mean": 0.0, "stddev": 0.1})],
)
def test_all_precisions_have_the_same_draws(draw: Callable[..., Array], parameters: dict[str, float]) -> None:
    single, double = (draw(shape=(3, 4), dtype=d, **STREAM, **parameters) for d in ("float32", "float64"))
    np.testing.assert_array_equal(single, double.astype(np.float32))


# Published outputs of philox4x32-10, as (counter, key, output), from the file kat_vectors of Random123.
ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "output"), ANSWERS)
def test_generator_gives_published_outputs(counter: tuple[int, ...], key: philox.Key, output: tuple[int, ...]) -> None:
    words = philox._philox(key, *(np.full((1,), word, np.uint64) for word in counter))
    assert tuple(int(word[0]) for word in words) == output


def test_steps_and_large_indices_have_separate_draws() -> None:
    key = philox.key(0, "augment")
    rows = [philox.bits(key, np.array([index]), 4, step)[0].tobytes() for index in (0, 2**32, 5) for step in (0, 1)]
    assert len(set(rows)) == 6


@pytest.mark.parametrize("count", [1, 2, 9])
def test_any_number_of_normal_values_can_be_drawn(count: int) -> None:
    drawn = np.full(count, np.nan)
    for place, part in philox.normal_parts(philox.key(1, "n"), count):
        assert np.isnan(drawn[place]).all()
        drawn[place] = part
    assert np.isfinite(drawn).all()


def test_a_permutation_contains_every_number_once() -> None:
    order = philox.permutation(philox.key(1, "digits/epoch/0"), 1000)
    assert sorted(order.tolist()) == list(range(1000))
    assert order.tolist() != list(range(1000))
    assert order.tolist() != philox.permutation(philox.key(1, "digits/epoch/1"), 1000).tolist()
