"""Run Hydra's application and sweeps; jobs of the basic sweeper are composed in this process before they run."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write

from runner.config.launcher import Launcher, variables
from runner.errors import ConfigError
from runner.system.redaction import redact, redact_overrides

VERSION_BASE = "1.3"
PROGRAM = "runner"

FULL_ERROR = "HYDRA_FULL_ERROR"
"""Environment variable that makes Hydra show tracebacks."""

HYDRA_SETTINGS = (
    f"hydra.job.name={PROGRAM}",
    # Runs have their own log; Hydra's handlers would repeat the messages of libraries on the terminal.
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
    # A run stores its configuration after it has locked its directory; Hydra would write it before the lock.
    "hydra.output_subdir=null",
)
"""Settings that neither the primary configuration nor the command line can change."""


_VARIABLES = {
    # Without this variable, Hydra prints its errors and exits with 1 instead of raising them.
    FULL_ERROR: "1",
    # Keeps the working directory out of sys.path in the processes of launchers such as joblib: otherwise a file there,
    # such as random.py, would be imported in place of a library.
    "PYTHONSAFEPATH": "1",
}


@contextmanager
def application_arguments(arguments: Sequence[str]) -> Iterator[None]:
    """Set ``sys.argv`` to ``arguments`` for Hydra, and make Hydra raise its errors.

    Hydra's global state, the environment and the logging are restored afterwards.
    """
    root = logging.getLogger()
    argv, handlers, level = sys.argv, root.handlers[:], root.level
    sys.argv = [PROGRAM, *arguments]
    GlobalHydra.instance().clear()
    try:
        with variables(_VARIABLES):
            yield
    finally:
        sys.argv = argv
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
        GlobalHydra.instance().clear()


_BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
_LAUNCHERS = "hydra/launcher"
_TARGET = "_target_"


class PlanInProcess(Callback):
    """A callback that makes Hydra's basic sweeper compose its jobs in this process; other sweepers keep their launcher.

    The configurations of the jobs still name the launcher that the user chose: see :func:`launcher_of`.
    """

    def on_multirun_start(self, config: DictConfig, **settings: Any) -> None:
        """Make the sweep's directory private if it will contain secrets; replace the launcher of the basic sweeper."""
        plain: Any = OmegaConf.to_container(config, resolve=False)
        given = [*plain["hydra"]["overrides"]["hydra"], *plain["hydra"]["overrides"]["task"]]
        if redact(plain) != plain or redact_overrides(given) != given:
            # Hydra next writes multirun.yaml, which contains the whole configuration, into this directory.
            Path(config.hydra.sweep.dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        if _jobs_are_known(config.hydra):
            with read_write(config.hydra):
                config.hydra.launcher = {_TARGET: _BASIC_LAUNCHER}


def launcher_of(hydra: Any) -> Launcher | None:
    """Return the launcher in the ``hydra`` section of a job; None if the sweeper is not Hydra's basic one.

    Raises ConfigError for a launcher that is not an installed plugin.
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
    """Return the name of the installed launcher whose class is ``target``."""
    store = ConfigStore.instance()
    names = store.list(_LAUNCHERS)
    for name in names:
        if store.load(f"{_LAUNCHERS}/{name}").node.get(_TARGET) == target:
            return name.removesuffix(".yaml")
    known = ", ".join(sorted(name.removesuffix(".yaml") for name in names))
    raise ConfigError(f"hydra.launcher._target_={target}: not an installed launcher; expected one of {known}")


_PRIMARY = "planned_sweep"
JOB = "job"
"""The key under which the argument of a task contains the number of the job, as text."""


def launch_planned(
    task: Callable[[Mapping[str, Any]], None],
    settings: Mapping[str, Any],
    jobs: Mapping[int, Path],
    launcher: Launcher,
    sweep_dir: Path,
) -> None:
    """Make ``launcher`` call ``task`` once for every job, in this or another process. All errors are raised.

    No YAML file is read: the primary configuration is made here and passed to the launcher, so that later changes to
    the files have no effect. task: a function at the top level of a module, because other processes find it by name;
    its argument is ``settings`` with the job's number as ``job``. jobs: number -> absolute directory.
    """
    # Files that Hydra and its launchers write are kept apart from the record of the sweep.
    record = sweep_dir / ".launch"
    record.mkdir(mode=0o700, exist_ok=True)
    primary = {
        "defaults": ["_self_", {"override hydra/launcher": launcher.name}],
        **settings,
        JOB: "",
        "directories": {str(number): str(directory) for number, directory in jobs.items()},
        "hydra": {
            "launcher": dict(launcher.settings),
            "sweeper": {"max_batch_size": launcher.batch},
            "job": {"env_set": dict(launcher.environment), "chdir": launcher.in_job_directory},
            "sweep": {"dir": str(record), "subdir": f"${{directories.${{{JOB}}}}}"},
        },
    }
    store = ConfigStore.instance()
    # Launchers pickle the store and send it to processes that cannot import the dataclasses of a plugin.
    store.repo.pop("schema", None)
    store.store(name=_PRIMARY, node=primary)
    application = hydra.main(version_base=VERSION_BASE, config_path=None, config_name=_PRIMARY)(task)
    axis = f"{JOB}=" + ",".join(f"'{number}'" for number in jobs)
    with application_arguments(["--multirun", axis, *HYDRA_SETTINGS]):
        application()
