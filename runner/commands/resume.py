"""``runner resume=DIR``: continue a stored run. Hydra has no part in it; the stored configuration is data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from runner.config.check import check
from runner.config.configuration import LIMITS, from_plain, load_stored, release_other_limit, to_plain
from runner.config.schema import Config
from runner.errors import ConfigError

KEY = "resume"
CONFIG_FILE = "config.yaml"


def is_resume(arguments: Sequence[str]) -> bool:
    """Whether the command line asks to continue a run."""
    return any(argument.startswith(f"{KEY}=") and argument != f"{KEY}=null" for argument in arguments)


def stored_run(arguments: Sequence[str]) -> tuple[Config, Path, list[str]]:
    """Return the configuration to continue with, the run's directory and the limits that were overridden.

    Raises ConfigError when the directory holds no stored run, or when anything but a limit is overridden.
    """
    directories, limits = _split(arguments)
    if len(directories) != 1:
        raise ConfigError(f"{KEY} is given {len(directories)} times: one run is continued at a time")
    run_dir = Path(directories[0]).absolute()
    if not (run_dir / CONFIG_FILE).is_file():
        raise ConfigError(f"{KEY}={directories[0]}: {run_dir} holds no {CONFIG_FILE}: not the directory of a run")
    plain = to_plain(load_stored(run_dir / CONFIG_FILE))
    for limit in limits:
        _set(plain, limit)
    release_other_limit(plain, limits)
    config = from_plain(plain)
    check(config)
    return config, run_dir, limits


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the values of ``resume=`` from overrides of limits; raise ConfigError for anything else."""
    directories, limits = [], []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == KEY:
            directories.append(value)
        elif name in LIMITS:
            limits.append(argument)
        else:
            raise ConfigError(
                f"{argument}: a run continues with its stored configuration; beside {KEY}=DIR only "
                f"{' and '.join(LIMITS)} may be given"
            )
    return directories, limits


def _set(plain: dict[str, Any], limit: str) -> None:
    name, _, text = limit.partition("=")
    section, key = name.split(".")
    try:
        plain[section][key] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{limit}: not a number") from error
