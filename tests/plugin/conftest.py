"""Every test here may install plugins: the tables are restored."""

from collections.abc import Iterator

import pytest

from runner.engine.run.kernel_table import load_kernels
from tests.plugin_tables import restored_tables


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    """Tables without plugins, before and after the test."""
    load_kernels()  # otherwise its kernels would be removed too
    with restored_tables():
        yield
