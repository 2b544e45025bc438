"""Options of the GPU tests: ``--on=gpu``, ``--on=emulated``, or by default only the small tests on the emulated GPU.

`make gpu`, which passes ``--on=gpu``, fails on a machine without a GPU. The test suite runs only the small tests.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from runner.kernels.gpu.cuda import GpusError, open_gpus
from runner.kernels.gpu.runtime import Runtime
from runner.system.files import user_cache_folder
from tests.gpu.gpus import Gpu
from tests.kernels.gpu.emulation import EmulatedRuntime, sources_folder

SMALL, EMULATED, GPU = "small", "emulated", "gpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the device and for an MNIST file."""
    parser.addoption("--on", choices=(SMALL, EMULATED, GPU), default=SMALL, help="device; small: only the small tests")
    parser.addoption("--mnist", type=Path, metavar="FILE", help="an .npz with x_train, y_train, x_test and y_test")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of these tests; if they run on a real GPU, load its libraries."""
    config.addinivalue_line("markers", "small: quick on the emulated GPU, and part of the suite")
    config.addinivalue_line("markers", "slow: part of the suite in `make test-all` only")
    config.addinivalue_line("markers", "gpu_only: needs libraries, memory or speed that only a real GPU has")
    if config.getoption("--on", SMALL) == GPU:
        try:
            found = open_gpus(False)
        except GpusError as error:
            pytest.exit(f"make gpu needs a GPU: {error}", returncode=4)
        # Load the libraries here: during the tests, pytest would turn a warning of their modules into an error.
        for name in ("cublas", "cudnn", "nccl"):
            found.library(name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, instead of skipping, the tests that are not meant for the chosen device."""
    here = Path(__file__).parent
    wanted = WANTED[config.getoption("--on", SMALL)]
    left_out = [item for item in items if here in item.path.parents and not wanted(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_marked(name: str) -> Callable[[pytest.Item], bool]:
    return lambda item: item.get_closest_marker(name) is not None


WANTED: dict[str, Callable[[pytest.Item], bool]] = {
    SMALL: _is_marked("small"),
    EMULATED: lambda item: not _is_marked("gpu_only")(item),
    GPU: lambda item: True,
}


@pytest.fixture(scope="session")
def _compiled(request: pytest.FixtureRequest) -> Path:
    """Return the folder of sources compiled for the emulated GPU; the kernel tests use the same folder."""
    return sources_folder(request)


@pytest.fixture(scope="session")
def _gpus() -> Callable[[bool], Runtime]:
    """Return a cached function that opens the real GPU. The function takes whether tf32 is allowed."""
    return cache(partial(open_gpus, code_folder=str(user_cache_folder() / "gpu_code")))


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Gpu:
    """Return the GPU under test. An emulated GPU never frees memory, so every test gets a new one."""
    if request.config.getoption("--on", SMALL) == GPU:
        return Gpu(request.getfixturevalue("_gpus"))
    folder = request.getfixturevalue("_compiled")
    return Gpu(cache(lambda tf32: EmulatedRuntime(folder, nbytes=1 << 32)), emulated=True)
