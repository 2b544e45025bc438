"""Collect only the garbage of a test: many tests and kernels call the collector, which is slow with many objects."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _few_objects() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()
