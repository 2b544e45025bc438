"""Test cases that cover every pair of values of independent settings, without all combinations."""

from collections.abc import Sequence
from typing import Any

import pytest
from allpairspy import AllPairs


def all_pairs(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test by names and values, so that any two values of different names occur together in a case."""
    return pytest.mark.parametrize(tuple(values), [tuple(row) for row in AllPairs(list(values.values()))])
