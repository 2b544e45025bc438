"""A fixture that restores the tables that plugins extend, so that every test can install plugins."""

from collections.abc import Iterator

import pytest

from runner.engine.run.kernel_table import load_kernels
from tests.plugin_tables import restored_tables


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    """Provide tables without plugins, and restore them after the test."""
    load_kernels()  # before the tables are saved, so that restoring them keeps all kernels
    with restored_tables():
        yield
