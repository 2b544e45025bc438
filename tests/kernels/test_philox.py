"""The generator against its published answers, and the independence of its draws."""

import numpy as np
import pytest

from runner.kernels import philox

# Known answers of philox4x32-10: counter, key, output (Random123, kat_vectors).
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
def test_known_answers(counter: tuple[int, ...], key: philox.Key, output: tuple[int, ...]) -> None:
    words = philox._philox(key, *(np.full((1,), word, np.uint64) for word in counter))
    assert tuple(int(word[0]) for word in words) == output


def test_a_key_is_a_function_of_seed_and_name() -> None:
    keys = {philox.key(seed, name) for seed in (0, 1) for name in ("conv1/w", "conv2/w")}
    assert len(keys) == 4
    assert philox.key(0, "conv1/w") in keys


def test_draws_of_an_index_do_not_depend_on_its_neighbours() -> None:
    key = philox.key(0, "augment")
    whole = philox.bits(key, np.arange(5), 7, step=2)
    assert whole.shape == (5, 7)
    np.testing.assert_array_equal(philox.bits(key, np.array([3]), 7, step=2)[0], whole[3])
    np.testing.assert_array_equal(philox.bits(key, np.array([3]), 5, step=2)[0], whole[3, :5])


def test_steps_and_large_indices_have_separate_draws() -> None:
    key = philox.key(0, "augment")
    rows = [philox.bits(key, np.array([index]), 4, step)[0].tobytes() for index in (0, 2**32, 5) for step in (0, 1)]
    assert len(set(rows)) == 6


def test_uniform_draws_are_below_one() -> None:
    draws = philox.uniform(philox.key(1, "u"), np.arange(10), 1000)
    assert 0.0 <= draws.min() < 0.001
    assert 0.999 < draws.max() < 1.0


@pytest.mark.parametrize("count", [1, 2, 9])
def test_normal_draws_exist_in_any_number(count: int) -> None:
    drawn = np.full(count, np.nan)
    for place, part in philox.normal_parts(philox.key(1, "n"), count):
        assert np.isnan(drawn[place]).all()
        drawn[place] = part
    assert np.isfinite(drawn).all()


def test_a_permutation_holds_every_number_once() -> None:
    order = philox.permutation(philox.key(1, "digits/epoch/0"), 1000)
    assert sorted(order.tolist()) == list(range(1000))
    assert order.tolist() != list(range(1000))
    assert order.tolist() != philox.permutation(philox.key(1, "digits/epoch/1"), 1000).tolist()
