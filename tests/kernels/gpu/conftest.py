"""An emulated GPU for each test; compiled sources are shared by all tests and later runs."""

from pathlib import Path

import pytest

from tests.kernels.gpu.emulation import EmulatedRuntime


@pytest.fixture
def runtime(compiled_sources: Path) -> EmulatedRuntime:
    """Return an emulated GPU."""
    return EmulatedRuntime(compiled_sources)
