"""An emulated GPU for each test; compiled sources are shared by all tests and later runs."""

from pathlib import Path

import pytest

from tests.kernels.gpu.emulation import EmulatedRuntime


@pytest.fixture
def runtime(compiled_sources: Path) -> EmulatedRuntime:
    """An emulated GPU."""
    return EmulatedRuntime(compiled_sources)


@pytest.fixture(params=[False, True], ids=["first_thread_first", "last_thread_first"])
def either_order(request: pytest.FixtureRequest, compiled_sources: Path) -> EmulatedRuntime:
    """Emulated GPUs of both orders of threads, for kernels whose threads wait for each other."""
    return EmulatedRuntime(compiled_sources, reversed=request.param)
