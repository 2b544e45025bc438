"""Weights that a run begins with instead of initial values: which of a checkpoint's fit, and why others do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from runner.checkpoint import Checkpoint, find, load
from runner.checkpoint.shard import Array
from runner.config.schema import Config
from runner.engine.graph.tensor import TensorSpec
from runner.errors import CheckpointError, ConfigError
from runner.training.inference import weights_of


@dataclass(frozen=True)
class InitialWeights:
    """What is taken of a checkpoint, and what is not.

    path: of the checkpoint. values: by name, in the dtype of the network that begins. left: weights of the network that
    keep their initial value -> why.
    """

    path: Path
    values: Mapping[str, Array]
    left: Mapping[str, str]

    def report(self) -> str:
        """What was taken and what was not, a line for each weight."""
        return "\n".join(
            [
                f"weights from {self.path}: {len(self.values)} taken, {len(self.left)} left at their initial value",
                *(f"  {name}: taken" for name in self.values),
                *(f"  {name}: left, {why}" for name, why in self.left.items()),
            ]
        )


def with_checkpoint_named(config: Config) -> Config:
    """Return the configuration with the checkpoint that ``init_from`` means now in place of the run that has it.

    The other run may go on. A start that was killed, or is repeated, must begin with the same weights all the same.
    Raises CheckpointError if there is no checkpoint.
    """
    return config if config.init_from is None else replace(config, init_from=str(find(Path(config.init_from))))


def initial_weights(config: Config) -> InitialWeights | None:
    """Return the weights that ``init_from`` asks for, None where it does not.

    Weights are what the network itself holds, moving averages too; slots of the optimizer are left. Floats of another
    width are converted. Raises CheckpointError where there is no checkpoint that can be used, or nothing in it matches,
    and ConfigError for a pattern that names nothing.
    """
    if config.init_from is None:
        return None
    path = find(Path(config.init_from))
    include, exclude = config.init_include or ["*"], config.init_exclude or []
    wanted = weights_of(config)
    _require_names("init_include", include, wanted)
    _require_names("init_exclude", exclude, wanted)
    found = load(path)
    left = {}
    for name, spec in wanted.items():
        if reason := _reason_against(name, spec, found, include, exclude):
            left[name] = reason
    values = {name: _converted(found.variables[name], spec) for name, spec in wanted.items() if name not in left}
    matched = InitialWeights(path, values, left)
    if not values:
        raise CheckpointError(f"init_from={config.init_from}: nothing matches. {matched.report()}")
    return matched


def _require_names(key: str, patterns: list[str], weights: Iterable[str]) -> None:
    """Raise ConfigError for a pattern that names no weight: it would silently have no effect."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in weights):
            raise ConfigError(f"{key}={patterns}: {pattern} names no weight; the network has {', '.join(weights)}")


def _reason_against(
    name: str, spec: TensorSpec, found: Checkpoint, include: list[str], exclude: list[str]
) -> str | None:
    """Why a weight is not taken; None where it is."""
    if not any(fnmatchcase(name, pattern) for pattern in include):
        return "init_include does not name it"
    for pattern in exclude:
        if fnmatchcase(name, pattern):
            return f"init_exclude names it ({pattern})"
    value = found.variables.get(name)
    if value is None:
        return "it is not in the checkpoint"
    if value.shape != spec.shape:
        return f"its shape is {spec.shape}, in the checkpoint {value.shape}"
    return None


def _converted(value: Array, spec: TensorSpec) -> Array:
    return np.asarray(value, dtype=spec.dtype, order="C")
