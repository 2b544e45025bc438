"""The networks measured on a GPU: those of convnet-benchmarks at its batch sizes, and a deep residual network."""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.cases import CASES, Case
from benchmarks.environments import ROOT
from benchmarks.network import write_problem
from benchmarks.problem import Problem
from runner.engine.graph import local_cluster
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.fields import labelled
from runner.models import MODELS
from runner.models.base import Model
from runner.optimizers import Momentum
from runner.strategies import Workload
from runner.strategies.single import Single
from runner.tasks.classification import classifier

PRECISIONS = ("float32", "tf32", "bfloat16")
"""tf32: float32 whose products use factors with 10-bit mantissas. bfloat16: bfloat16 compute, float32 state."""

BATCHES = {"alexnet": 128, "vgg_a": 64, "googlenet": 128, "resnet110": 128, "overfeat": 128, "smoke": 4}
"""Case -> batch size, most important cases first. "smoke" is for tests and is measured only if it is named."""

GPU_CASES = {name: replace(CASES[name], batch=batch, precisions=PRECISIONS) for name, batch in BATCHES.items()}


def workload_of(case: Case, precision: str) -> Workload:
    """Return the workload of a case: its network and the momentum optimizer."""
    return Workload(
        network=classifier(model_of(case.model), case.classes),
        optimizer=Momentum(lr=case.learning_rate),
        fields=labelled(case.shape),
        dtype="bfloat16" if precision == "bfloat16" else "float32",
        seed=0,
        batch_size=case.batch,
        eval_batch_size=1,
    )


def model_of(overrides: Sequence[str]) -> Model:
    """Return the model of the overrides ``model=PRESET`` and ``model.KEY=VALUE``, without Hydra."""
    chosen, *changes = (override.split("=", 1) for override in overrides)
    if chosen[0] != "model" or any(not key.startswith("model.") for key, _ in changes):
        raise ValueError(f"overrides {list(overrides)}: expected model=PRESET, then model.KEY=VALUE")
    settings: dict[str, Any] = yaml.safe_load((ROOT / "conf" / "model" / f"{chosen[1]}.yaml").read_text())
    (schema,) = settings.pop("defaults")
    name = schema.removeprefix("/schema/model/").removesuffix("@_here_")
    settings.update({key.removeprefix("model."): yaml.safe_load(value) for key, value in changes})
    return MODELS[name](**settings)


def prepare(case: Case, folder: Path) -> Problem:
    """Create a folder with the float32 problem of a case, for all precisions. Initial values are drawn on the CPU."""
    workload = workload_of(case, "float32")
    with closing(LocalSession(Single().build(workload), local_cluster(1), load_kernels())) as session:
        session.run("init")
        saved = session.run("save")
    folder.mkdir(parents=True)  # last: after an error, the next measurement of the case prepares the problem again
    return write_problem(
        folder,
        workload,
        case.classes,
        saved,
        precision="float32",
        threads=os.cpu_count() or 1,
        learning_rate=case.learning_rate,
    )
