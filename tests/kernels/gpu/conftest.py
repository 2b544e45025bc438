"""An emulated GPU for each test; all tests and later test runs share the compiled sources."""

from pathlib import Path

import pytest

from tests.kernels.gpu.emulation import EmulatedRuntime


@pytest.fixture
def runtime(compiled_sources: Path) -> EmulatedRuntime:
    """Return an emulated GPU."""
    return EmulatedRuntime(compiled_sources)
