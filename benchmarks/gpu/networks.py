"""The networks measured on a GPU: those of convnet-benchmarks at its batch sizes, and a deep residual network."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import yaml

from benchmarks.cases import CASES, Case
from benchmarks.environments import ROOT
from runner.engine.graph import state_dtype
from runner.fields import labelled
from runner.models import MODELS
from runner.models.base import Model
from runner.optimizers import Momentum
from runner.strategies import Workload
from runner.tasks.classification import classifier

PRECISIONS = ("float32", "tf32", "bfloat16")
"""tf32: float32 whose products use factors with 10-bit mantissas. bfloat16: bfloat16 compute, float32 state."""

BATCHES = {"alexnet": 128, "vgg_a": 64, "googlenet": 128, "resnet110": 128, "overfeat": 128, "smoke": 4}
"""Case -> batch size, most important cases first. "smoke" is for tests and is measured only if it is named."""

GPU_CASES = {name: replace(CASES[name], batch=batch, precisions=PRECISIONS) for name, batch in BATCHES.items()}


def compute_dtype(precision: str) -> str:
    """Return the dtype of activations in a precision."""
    return "bfloat16" if precision == "bfloat16" else "float32"


def workload_of(case: Case, precision: str) -> Workload:
    """Return the workload of a case: its network and the momentum optimizer."""
    dtype = compute_dtype(precision)
    assert state_dtype(dtype) == "float32", "variables and images are float32"
    return Workload(
        network=classifier(model_of(case.model), case.classes),
        optimizer=Momentum(lr=case.learning_rate),
        fields=labelled(case.shape),
        dtype=dtype,
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
