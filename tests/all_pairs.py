"""Test cases that cover every pair of values of independent settings, but not all combinations of values."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from allpairspy import AllPairs


def slow_beyond(quick: Mapping[str, Sequence[Any]], **values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test like :func:`all_pairs` with ``quick``; the further cases of ``values`` are slow tests."""
    few = [tuple(row) for row in AllPairs(list(quick.values()))]
    more = [tuple(row) for row in AllPairs(list(values.values()))]
    slow = [pytest.param(*row, marks=pytest.mark.slow) for row in more if row not in few]
    return pytest.mark.parametrize(tuple(values), [*few, *slow])


def all_pairs(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test so that any two values of different parameters occur together in at least one case."""
    return pytest.mark.parametrize(tuple(values), [tuple(row) for row in AllPairs(list(values.values()))])
