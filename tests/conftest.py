"""Fixtures and settings of all tests: Hypothesis's examples, the kernels, and a fake that replaces training."""

import functools
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from llvmlite import binding

from runner.cli import COLLECTED
from runner.engine.run.kernel_table import load_kernels
from runner.kernels.registry import Registry
from runner.training.run import run
from tests.fake_training import FakeTraining
from tests.kernels.gpu.emulation import sources_folder
from tests.small_runs import small_config

# The tests start hundreds of processes. If bytecode is disabled, as in container images, each process compiles the
# whole project again, which takes a third of the time of a short run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Draw the same examples on every machine and in every run, allow slow machines, and print how to replay a failure.
settings.register_profile(
    "runner", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("runner")
# Hypothesis also draws constants from the source of the project's imported modules, so examples would change with every
# edit and depend on the tests that ran before. Hypothesis has no setting that turns this off.
providers.is_local_module_file = lambda path: False


# As in the command `runner`: a low threshold made garbage collection a tenth of the time of these tests.
gc.set_threshold(COLLECTED)


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection; scanning them took a third of the time of a test."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this project."""
    parser.addoption("--write-images", action="store_true", help="replace docs/images by new browser screenshots")
    parser.addoption("--avx2", action="store_true", help="use no CPU instructions beyond AVX2 in oneDNN and LLVM")


def pytest_configure(config: pytest.Config) -> None:
    """If requested, hide instructions beyond AVX2 from oneDNN in all processes, and from LLVM in this process."""
    if config.getoption("--avx2"):
        # oneDNN reads the variable once, at its first call.
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
        found = binding.get_host_cpu_features()
        hidden = {name: False for name in found if name.startswith(("avx512", "avx10", "amx", "evex512"))}
        features = binding.targets.FeatureMap(found | hidden)
        binding.get_host_cpu_features = lambda: features
        # LLVM derives instructions also from the name of the CPU.
        binding.get_host_cpu_name = lambda: "x86-64-v3"


@pytest.fixture(scope="session")
def registry() -> Registry:
    """Return the registry of kernels that a process of the engine uses."""
    return load_kernels()


@pytest.fixture(scope="session")
def compiled_sources(request: pytest.FixtureRequest) -> Path:
    """Return the cache folder for sources compiled for the emulated GPU; skip the test if there is no compiler."""
    return sources_folder(request)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that trains, once for equal overrides, and returns the run directory. Tests only read it."""

    @functools.cache
    def train(*overrides: str) -> Path:
        path = tmp_path_factory.mktemp("trained") / "run"
        run(small_config(*overrides), path, overrides=[])
        return path

    return train


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory, in an environment without variables that affect the command line."""
    monkeypatch.chdir(tmp_path)
    for name in ("HYDRA_FULL_ERROR", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    # These tests compute on the CPU, even on a machine with GPUs.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


@pytest.fixture
def fake_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTraining:
    """Replace the function that trains by a fake, and return the fake. The working directory is empty."""
    fake = FakeTraining()
    monkeypatch.setattr("runner.training.run.run", fake.run)
    return fake
