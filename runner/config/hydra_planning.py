"""Composing the jobs of a sweep before any of them runs, whatever launcher will run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write

from runner.config.launcher import Launcher
from runner.errors import ConfigError
from runner.system.redaction import redact, redact_overrides

_BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
_LAUNCHERS = "hydra/launcher"
_TARGET = "_target_"


class PlanInProcess(Callback):
    """Has Hydra's basic sweeper hand its jobs to this process; other sweepers keep the launcher they have.

    The launcher of the jobs' own configurations stays what the user chose: see :func:`launcher_of`.
    """

    def on_multirun_start(self, config: DictConfig, **settings: Any) -> None:
        """Replace the launcher in the configuration of the sweep; hide a directory that will hold its secrets."""
        plain: Any = OmegaConf.to_container(config, resolve=False)
        given = [*plain["hydra"]["overrides"]["hydra"], *plain["hydra"]["overrides"]["task"]]
        if redact(plain) != plain or redact_overrides(given) != given:
            # Hydra writes both configurations there as soon as it is.
            Path(config.hydra.sweep.dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        if _jobs_are_known(config.hydra):
            with read_write(config.hydra):
                config.hydra.launcher = {_TARGET: _BASIC_LAUNCHER}


def launcher_of(hydra: Any) -> Launcher | None:
    """The launcher that the ``hydra`` section of a job names, None where its sweeper needs results to go on.

    Raises ConfigError for a launcher that is no installed plugin.
    """
    if not _jobs_are_known(hydra):
        return None
    settings: Any = OmegaConf.to_container(hydra.launcher, resolve=True)
    environment: Any = OmegaConf.to_container(hydra.job.env_set, resolve=True)
    return Launcher(
        name=_installed(settings.pop(_TARGET)),
        settings=settings,
        batch=hydra.sweeper.max_batch_size,
        environment={name: str(value) for name, value in environment.items()},
        in_job_directory=bool(hydra.job.chdir),
    )


def _jobs_are_known(hydra: Any) -> bool:
    return str(hydra.sweeper.get(_TARGET)) == _BASIC_SWEEPER


def _installed(target: str) -> str:
    """The name under which the plugin of a launcher is installed."""
    store = ConfigStore.instance()
    names = store.list(_LAUNCHERS)
    for name in names:
        if store.load(f"{_LAUNCHERS}/{name}").node.get(_TARGET) == target:
            return name.removesuffix(".yaml")
    known = ", ".join(sorted(name.removesuffix(".yaml") for name in names))
    raise ConfigError(f"hydra.launcher._target_={target}: no installed launcher; expected that of one of {known}")
