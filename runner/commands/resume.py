"""``runner resume=DIR``: continue a stored run. The stored configuration is data; what may change of it is listed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.config.check import check
from runner.config.configuration import LIMITS, fix_machine_values, from_plain, load_stored
from runner.config.overriding import overridden
from runner.config.schema import AUTO, Config
from runner.cores import usable_cores
from runner.engine.device import CPU
from runner.errors import ConfigError
from runner.records.run_directory import CONFIG_FILE

KEY = "resume"

MOVABLE = (*LIMITS, "train.patience", "train.min_delta", "train.microbatches", "parallelism", "cluster")
"""What may change when a run goes on: how far it goes, and who computes it; never what is computed."""

_OF_THE_MACHINE = ("workers", "threads_per_worker", "cores_per_worker", "cards", "collectives")
"""Keys of the cluster that follow the strategy unless they are named."""

_OF_THE_DEVICE = ("device_taken", "cards", "collectives")
"""Keys of the cluster that follow the device unless they are named."""


def is_resume(arguments: Sequence[str]) -> bool:
    """Whether the command line asks to continue a run."""
    return any(argument.startswith(f"{KEY}=") and argument != f"{KEY}=null" for argument in arguments)


def stored_run(arguments: Sequence[str]) -> tuple[Config, Path, list[str]]:
    """Return the configuration to continue with, the run's directory and what was overridden.

    Where the strategy changes, cores and cards are shared out anew; where the device does, cards are. Raises
    ConfigError when the directory holds no stored run, or when anything but :data:`MOVABLE` is overridden.
    """
    directories = [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{KEY}=")]
    overrides = [argument for argument in arguments if not argument.startswith(f"{KEY}=")]
    if len(directories) != 1:
        raise ConfigError(f"{KEY} is given {len(directories)} times: one run is continued at a time")
    run_dir = Path(directories[0]).absolute()
    if not (run_dir / CONFIG_FILE).is_file():
        raise ConfigError(f"{KEY}={directories[0]}: {run_dir} holds no {CONFIG_FILE}: not the directory of a run")
    return _continued(load_stored(run_dir / CONFIG_FILE), overrides), run_dir, overrides


def _continued(stored: Config, overrides: Sequence[str]) -> Config:
    *first, last = MOVABLE
    otherwise = (
        f"a run continues with its stored configuration; beside {KEY}=DIR only {', '.join(first)} and {last} "
        "may be given"
    )
    plain = overridden(_on_its_device(stored), overrides, MOVABLE, otherwise)
    if plain["parallelism"] != dataclasses.asdict(stored.parallelism):
        _release(plain, _OF_THE_MACHINE, overrides)
    if any(override.startswith("cluster.device=") for override in overrides):
        _release(plain, _OF_THE_DEVICE, overrides)
    config = from_plain(plain)
    check(config)
    return fix_machine_values(config, usable_cores())


def _on_its_device(stored: Config) -> Config:
    """A stored configuration that says what was taken, as an earlier version's does not: it had the processor alone."""
    cluster = stored.cluster
    if cluster.device != AUTO or cluster.device_taken is not None:
        return stored
    return dataclasses.replace(stored, cluster=dataclasses.replace(cluster, device_taken=CPU))


def _release(plain: dict[str, Any], keys: Sequence[str], overrides: Sequence[str]) -> None:
    named = {override.partition("=")[0] for override in overrides}
    plain["cluster"] |= {key: None for key in keys if f"cluster.{key}" not in named}
