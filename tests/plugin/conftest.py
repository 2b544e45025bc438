"""Every test here may install plugins: the tables are restored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runner.engine.run.kernel_table import load_kernels
from tests.plugin_tables import restored_tables


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    """The tables as they are without plugins, now and afterwards."""
    load_kernels()  # or the kernels that come with it would be taken back too
    with restored_tables():
        yield
