"""Test cases that cover every pair of values of independent settings, but not all combinations of values."""

from collections.abc import Sequence
from typing import Any

import pytest
from allpairspy import AllPairs


def all_pairs(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test so that any two values of different parameters occur together in at least one case."""
    return pytest.mark.parametrize(tuple(values), [tuple(row) for row in AllPairs(list(values.values()))])
