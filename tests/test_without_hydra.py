"""Training works without Hydra, OmegaConf and MLflow: only the command line requires them."""

import subprocess
import sys

import pytest

ROOMS = ("engine", "kernels", "strategies", "nn", "models", "optimizers")

BLOCKED = "import sys\nfor name in ('hydra', 'omegaconf', 'mlflow'):\n    sys.modules[name] = None\n"

TRAIN = """
import numpy as np
from runner.engine.graph.device import local_cluster
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.models import MODELS
from runner.optimizers import OPTIMIZERS
from runner.strategies import STRATEGIES
from runner.tasks.classification import classifier
from runner.strategies.base import Workload
from runner.fields import labelled


class Batch:
    def read(self, split, step, lo, hi):
        index = np.arange(lo, hi)
        x = np.random.default_rng(0).standard_normal((hi, 1, 28, 28)).astype("float32")[lo:]
        return {"x": x, "y": index % 10, "index": index, "mask": np.ones(hi - lo, "float32")}


network = classifier(MODELS["lenet"](), 10)
workload = Workload(network, OPTIMIZERS["momentum"](), labelled((1, 28, 28)), "float32", 0, 8, 8)
program = STRATEGIES["single"]().build(workload)
session = LocalSession(program, local_cluster(program.workers), load_kernels(), Batch())
session.run("init")
for step in range(3):
    feeds = {"step": np.int64(step), "learning_rate": np.float32(0.005)}
    print(float(session.run("train", step=step, feeds=feeds)["loss"]))
session.close()
"""

IMPORT = """
import importlib, pkgutil, runner
for room in {rooms!r}:
    package = importlib.import_module(f"runner.{{room}}")
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), f"runner.{{room}}."):
        importlib.import_module(module.name)
print(sorted(set(sys.modules) & {{"hydra", "omegaconf", "mlflow", "cupy", "cudnn"}} - {{
    name for name in sys.modules if sys.modules[name] is None}}))
"""


def answer(script: str) -> str:
    """Return the output of a script in a new interpreter that cannot import Hydra, OmegaConf or MLflow."""
    done = subprocess.run([sys.executable, "-c", BLOCKED + script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_network_trains_through_the_engine_alone() -> None:
    first, _, last = map(float, answer(TRAIN).split())
    assert 0 < last < first


def test_modules_below_the_command_line_import_no_blocked_and_no_gpu_library() -> None:
    assert answer(IMPORT.format(rooms=ROOMS)) == "[]\n"


def test_the_libraries_are_really_blocked() -> None:
    with pytest.raises(AssertionError, match="import of omegaconf halted"):
        answer("import runner.config.configuration")
