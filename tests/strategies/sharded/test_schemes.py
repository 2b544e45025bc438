"""Which examples go through the dense layers together, in each scheme."""

from itertools import product

import pytest

from runner.errors import ConfigError
from runner.strategies.replica import shares
from runner.strategies.sharded.network_parts import SCHEMES, Examples, dense_passes, updates_per_batch


def sizes(passes: list[Examples]) -> list[list[int]]:
    return [[hi - lo for lo, hi in examples] for examples in passes]


def test_scheme_a_has_one_pass_of_all() -> None:
    assert dense_passes("a", 7, 3, None) == [((0, 3), (0, 2), (0, 2))]


def test_in_scheme_b_a_pass_is_the_share_of_a_worker() -> None:
    assert sizes(dense_passes("b", 7, 3, None)) == [[3, 0, 0], [0, 2, 0], [0, 0, 2]]


def test_in_scheme_c_a_pass_has_a_part_of_every_share() -> None:
    assert dense_passes("c", 8, 2, None) == [((0, 2), (0, 2)), ((2, 4), (2, 4))]
    assert sizes(dense_passes("c", 7, 3, None)) == [[1, 1, 1], [1, 1, 0], [1, 0, 1]]


def test_fc_batch_decides_the_number_of_passes() -> None:
    assert sizes(dense_passes("b", 8, 2, 2)) == [[2, 0], [2, 0], [0, 2], [0, 2]]
    assert sizes(dense_passes("c", 8, 2, 2)) == [[1, 1]] * 4
    assert sizes(dense_passes("b", 12, 4, 6)) == [[3, 3, 0, 0], [0, 0, 3, 3]]


def test_in_scheme_b_an_update_may_take_the_last_of_one_worker_and_the_first_of_the_next() -> None:
    assert dense_passes("b", 6, 2, 2) == [((0, 2), (0, 0)), ((2, 3), (0, 1)), ((3, 3), (1, 3))]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_fc_batch_of_the_batch_equals_null(scheme: str) -> None:
    assert dense_passes(scheme, 12, 3, 12) == dense_passes(scheme, 12, 3, None)
    assert updates_per_batch(scheme, 12, 12) == updates_per_batch(scheme, 12, None) == 1


@pytest.mark.parametrize(("scheme", "workers", "batch"), list(product("bc", [1, 2, 3, 4], [12, 13, 30])))
def test_passes_are_consecutive_parts_of_every_share_and_all_of_it(scheme: str, workers: int, batch: int) -> None:
    held = [hi - lo for lo, hi in shares(batch, workers)]
    for fc_batch in [None, *(size for size in range(1, batch) if batch % size == 0)]:
        passes = dense_passes(scheme, batch, workers, fc_batch)
        assert len(passes) == (workers if fc_batch is None else batch // fc_batch)
        for worker, count in enumerate(held):
            edges = [edge for examples in passes for edge in examples[worker]]
            assert [edges[0], edges[-1]] == [0, count]
            assert edges[1:-1:2] == edges[2:-1:2]
        totals = [sum(counts) for counts in sizes(passes)]
        expected = [hi - lo for lo, hi in shares(batch, workers)] if fc_batch is None else [fc_batch] * len(passes)
        assert totals == expected


def test_in_scheme_c_workers_never_differ_by_more_than_rounding() -> None:
    for counts in sizes(dense_passes("c", 1024, 8, 128)):
        assert counts == [16] * 8
    for counts in sizes(dense_passes("c", 30, 4, 10)):
        assert max(counts) - min(counts) <= 1


def test_an_update_of_no_divisor_is_refused() -> None:
    expected = r"parallelism\.fc_batch=5: expected a divisor of train\.batch_size=12, or null for the whole batch"
    with pytest.raises(ConfigError, match=expected):
        dense_passes("b", 12, 2, 5)
    with pytest.raises(ConfigError, match=r"parallelism\.fc_batch=24: expected a divisor of train\.batch_size=12"):
        dense_passes("c", 12, 2, 24)


def test_scheme_a_refuses_smaller_updates() -> None:
    expected = r"fc_batch=6 with parallelism\.scheme=a and train\.batch_size=12: .* use scheme=b or c, or fc_batch=null"
    with pytest.raises(ConfigError, match=expected):
        dense_passes("a", 12, 2, 6)
