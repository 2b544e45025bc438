"""Initial weights from another run (``init_from``): the weights taken, and the reasons why others are not taken."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from runner.checkpoint import find, load
from runner.checkpoint.shard import Array
from runner.config.schema import Config
from runner.engine.graph import TensorSpec
from runner.errors import CheckpointError, ConfigError
from runner.training.inference import weights_of


@dataclass(frozen=True)
class InitialWeights:
    """The weights that a new run takes from a checkpoint.

    path: the checkpoint. values: name -> value in the dtype of the new network. left: name of a weight that keeps its
    initial value -> reason.
    """

    path: Path
    values: Mapping[str, Array]
    left: Mapping[str, str]

    def report(self) -> str:
        """Return a line with the counts, and a line for each weight: taken, or the reason why it was not taken."""
        return "\n".join(
            [
                f"weights from {self.path}: {len(self.values)} loaded, {len(self.left)} not loaded",
                *(f"  {name}: loaded" for name in self.values),
                *(f"  {name}: not loaded: {why}" for name, why in self.left.items()),
            ]
        )


def with_checkpoint_named(config: Config) -> Config:
    """Return the configuration with ``init_from`` set to the path of the checkpoint that it selects now.

    A repetition of the new run then begins with the same weights, even if ``init_from`` named a run that has written
    newer checkpoints since. Raises CheckpointError if there is no checkpoint.
    """
    if config.init_from is None:
        return config
    try:
        return replace(config, init_from=str(find(Path(config.init_from))))
    except CheckpointError as error:
        raise CheckpointError(f"init_from: {error}") from error


def initial_weights(config: Config) -> InitialWeights | None:
    """Return the weights that ``init_from`` names; None if ``init_from`` is not set.

    Weights are the variables of the network, including moving averages but not optimizer slots. Values of another
    dtype are converted. Raises CheckpointError if no checkpoint is usable or none of its weights match,
    ConfigError for a pattern that matches no weight.
    """
    if config.init_from is None:
        return None
    path = find(Path(config.init_from))
    include, exclude = config.init_include or ["*"], config.init_exclude or []
    wanted = weights_of(config)
    for key, patterns in (("init_include", include), ("init_exclude", exclude)):
        for pattern in patterns:
            # A pattern that matches nothing would silently have no effect.
            if not fnmatch.filter(wanted, pattern):
                raise ConfigError(f"{key}={patterns}: {pattern} matches no weight; the network has {', '.join(wanted)}")
    found = load(path).variables
    reasons = {name: _reason_against(name, spec, found, include, exclude) for name, spec in wanted.items()}
    left = {name: reason for name, reason in reasons.items() if reason is not None}
    values = {name: np.asarray(found[name], spec.dtype, order="C") for name, spec in wanted.items() if name not in left}
    matched = InitialWeights(path, values, left)
    if not values:
        raise CheckpointError(f"init_from={config.init_from}: no weight fits. {matched.report()}")
    return matched


def _reason_against(
    name: str, spec: TensorSpec, found: Mapping[str, Array], include: list[str], exclude: list[str]
) -> str | None:
    """Return the reason why a weight is not taken; None if it is taken."""
    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in include):
        return "no pattern of init_include matches"
    for pattern in exclude:
        if fnmatch.fnmatchcase(name, pattern):
            return f"init_exclude has {pattern}"
    value = found.get(name)
    if value is None:
        return "the checkpoint has no such weight"
    if value.shape != spec.shape:
        return f"shape {spec.shape} in the network, {value.shape} in the checkpoint"
    return None
