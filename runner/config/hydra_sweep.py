"""Run Hydra's application and sweeps. Jobs are composed in this process, even if they run in other processes."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydra
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from runner.config.launcher import Launcher, variables
from runner.config.monitor import monitor_of_plain
from runner.config.shared_choices import composed_jobs
from runner.errors import ConfigError
from runner.system.redaction import redact, redact_overrides

VERSION_BASE = "1.3"
PROGRAM = "runner"

FULL_ERROR = "HYDRA_FULL_ERROR"  # environment variable that makes Hydra show tracebacks
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

    Hydra's global state, the environment and the logging are restored afterwards, so that a sweeper of Hydra can start
    a launcher of Hydra.
    """
    root, outer = logging.getLogger(), GlobalHydra.instance()
    argv, handlers, level, running = sys.argv, root.handlers[:], root.level, outer.hydra
    sys.argv = [PROGRAM, *arguments]
    outer.clear()
    try:
        with variables(_VARIABLES):
            yield
    finally:
        sys.argv = argv
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
        outer.hydra = running


_REPORT_EVERY_S = 2.0

_TARGET = "_target_"
_DIRECTIONS: dict[str, tuple[object, object]] = {
    "direction": ("minimize", "maximize"),
    "ax_config.experiment.minimize": (True, False),
    "optim.maximize": (False, True),
}
"""Key of a sweeper (Optuna, Ax, Nevergrad) -> (value if low metrics are better, value if high metrics are better)."""


class BatchLauncher(BasicLauncher):
    """A launcher that composes the jobs of a batch in this process. The task function is an object that runs the jobs.

    The configurations of the jobs still name the launcher that the user chose: see :func:`launcher_of`.
    """

    def setup(self, *, config: DictConfig, **context: Any) -> None:
        """Raise ConfigError if the user chose a direction that contradicts the metric."""
        super().setup(config=config, **context)
        monitor = monitor_of_plain(config)
        for key, values in _DIRECTIONS.items():
            found = OmegaConf.select(config.hydra.sweeper, key)
            if found is not None and getattr(found, "name", found) != values[monitor.highest]:
                raise ConfigError(
                    f"hydra.sweeper.{key}={found}: jobs return {monitor.metric} (train.monitor), whose "
                    f"{'high' if monitor.highest else 'low'} values are better; leave the key out"
                )

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Compose all jobs, then create their directories; the task function's ``end_batch`` sets their results."""
        context, task = self.hydra_context, self.task_function
        assert isinstance(context, HydraContext)
        composed = iter(list(self._composed(job_overrides)))
        loader: Any = SimpleNamespace(load_sweep_config=lambda config, overrides: next(composed))
        self.hydra_context = HydraContext(config_loader=loader, callbacks=context.callbacks)
        try:
            returns = super().launch(job_overrides, initial_job_idx)
        finally:
            self.hydra_context = context
        task.end_batch(returns)  # type: ignore[union-attr]
        return returns

    def _composed(self, job_overrides: Sequence[Sequence[str]]) -> Iterator[DictConfig]:
        reported_s = time.monotonic()
        assert self.hydra_context is not None
        assert self.config is not None
        compose = composed_jobs(self.hydra_context.config_loader, self.config)
        for number, overrides in enumerate(job_overrides):
            if time.monotonic() - reported_s >= _REPORT_EVERY_S:
                reported_s = time.monotonic()
                print(f"composed {number} of {len(job_overrides)} jobs", file=sys.stderr, flush=True)
            yield compose(overrides)


# Hydra creates launchers only from classes in the package hydra_plugins, so this module is also registered there.
BatchLauncher.__module__ = "hydra_plugins.runner"
sys.modules[BatchLauncher.__module__] = sys.modules[__name__]


class PlanInProcess(Callback):
    """A Hydra callback that replaces the launcher of a sweep with :class:`BatchLauncher` when the sweep starts."""

    def on_multirun_start(self, config: DictConfig, **settings: Any) -> None:
        """Make the sweep's directory private if it will contain secrets; replace the launcher; set the direction."""
        plain: Any = OmegaConf.to_container(config, resolve=False)
        given = [*plain["hydra"]["overrides"]["hydra"], *plain["hydra"]["overrides"]["task"]]
        if redact(plain) != plain or redact_overrides(given) != given:
            # Hydra next writes multirun.yaml, which contains the whole configuration, into this directory.
            Path(config.hydra.sweep.dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        from runner.config.batch_sweeper import REPLACED, BatchSweeper

        for plugin in (BatchLauncher, BatchSweeper):
            Plugins.instance().register(plugin)
        with read_write(config.hydra), open_dict(config.hydra.sweeper):
            config.hydra.launcher = {_TARGET: f"{BatchLauncher.__module__}.{BatchLauncher.__name__}"}
            if config.hydra.sweeper[_TARGET] == REPLACED:
                config.hydra.sweeper[_TARGET] = f"{BatchSweeper.__module__}.{BatchSweeper.__name__}"
            for key, values in _DIRECTIONS.items():
                chosen = any(text.lstrip("+").startswith(f"hydra.sweeper.{key}=") for text in given)
                if OmegaConf.select(config.hydra.sweeper, key) is not None and not chosen:
                    OmegaConf.update(config.hydra.sweeper, key, values[monitor_of_plain(config).highest])


def sweeper_of(hydra: Any) -> str:
    return _installed("sweeper", str(hydra.sweeper.get(_TARGET)))


def launcher_of(hydra: Any) -> Launcher:
    """Return the launcher in the ``hydra`` section of a job. Raises ConfigError if it is not an installed plugin."""
    settings: Any = OmegaConf.to_container(hydra.launcher, resolve=True)
    environment: Any = OmegaConf.to_container(hydra.job.env_set, resolve=True)
    return Launcher(
        name=_installed("launcher", settings.pop(_TARGET)),
        settings=settings,
        batch=hydra.sweeper.get("max_batch_size"),
        environment={name: str(value) for name, value in environment.items()},
        in_job_directory=bool(hydra.job.chdir),
    )


def _installed(kind: str, target: str) -> str:
    """Return the name of the installed plugin of this kind, "launcher" or "sweeper", whose class is ``target``."""
    store = ConfigStore.instance()
    names = store.list(f"hydra/{kind}")
    for name in names:
        if store.load(f"hydra/{kind}/{name}").node.get(_TARGET) == target:
            return name.removesuffix(".yaml")
    known = ", ".join(sorted(name.removesuffix(".yaml") for name in names))
    raise ConfigError(f"hydra.{kind}._target_={target}: not an installed {kind}; expected one of {known}")


_PRIMARY = "planned_sweep"
JOB = "job"  # the key under which the argument of a task contains the number of the job, as text


def launch_planned(
    task: Callable[[Mapping[str, Any]], None],
    settings: Mapping[str, Any],
    jobs: Mapping[int, Path],
    launcher: Launcher,
    sweep_dir: Path,
) -> None:
    """Make ``launcher`` call ``task`` once for every job, in this or another process. All errors are raised.

    No YAML file is read: the primary configuration is made here and passed to the launcher, so that later changes to
    the files have no effect. task: a function at the top level of a module, because other processes find it by name.
    The argument of ``task`` is ``settings`` with the job's number as ``job``. jobs: number -> absolute directory.
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
    schemas = store.repo.pop("schema", {})
    store.store(name=_PRIMARY, node=primary)
    application = hydra.main(version_base=VERSION_BASE, config_path=None, config_name=_PRIMARY)(task)
    axis = f"{JOB}=" + ",".join(f"'{number}'" for number in jobs)
    try:
        with application_arguments(["--multirun", axis, *HYDRA_SETTINGS]):
            application()
    finally:
        store.repo["schema"] = schemas
