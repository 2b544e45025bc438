"""Configurations composed by Hydra: the command line, sweeps, completion, errors, overrides of stored configurations.

Hydra composes configurations and creates directories, but does not determine the exit code. An error before the start
of a job is raised as a ConfigError or a ResourceError; an error in a job keeps its class.
"""

import argparse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_automatic_config_search_path, get_args_parser
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobRuntime, JobStatus, setup_globals, validate_config_path
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from runner.config import hydra_sweep
from runner.config.command_line import overrides_first, quoting_hint
from runner.config.conf_dir import conf_dir, yaml_folders
from runner.config.configuration import from_composed, release_other_limit, structured, to_plain
from runner.config.error_text import describe, null_section, unknown_command_line_option, unknown_option
from runner.config.groups import GROUPS
from runner.config.launcher import BASIC, Launcher, SweepPlace
from runner.config.schema import Config
from runner.config.shared_choices import RunLoader, SharedChoices
from runner.errors import ConfigError, ResourceError, RunnerError

CONFIG_NAME = "config"

PLAN_IN_PROCESS = "+hydra.callbacks.runner={_target_: runner.config.hydra_sweep.PlanInProcess}"
"""The override that makes Hydra compose the jobs of a sweep in this process, for every launcher."""

RunBatch = Callable[[Sequence["Job"]], Sequence[float | RunnerError]]
"""A function that runs a batch of jobs, on which later jobs depend, and returns the value or the error of each job."""


@dataclass(frozen=True)
class Job:
    """One job as Hydra composed it, not yet checked. run_dir: absolute path of the job's directory.

    launcher: runs the composed jobs of a sweep; None for a single job. sweeper: name of the sweeper, such as "optuna".
    trials: number of jobs that the sweeper will choose, None if it is not known in advance.
    """

    composed: DictConfig
    overrides: list[str]
    run_dir: Path
    sweep: SweepPlace | None = None
    launcher: Launcher | None = None
    sweeper: str = BASIC
    trials: int | None = None

    def config(self) -> Config:
        """Return the checked configuration. Raises ConfigError if it is invalid."""
        return from_composed(self.composed, self.overrides)


class _Composer:
    """Hydra's task function: keeps the composed jobs, and runs a batch if later jobs depend on its results."""

    def __init__(self, varied: Collection[str], run_batch: RunBatch) -> None:
        self.jobs: list[Job] = []
        self._varied = varied
        self._run_batch = run_batch

    def __call__(self, composed: DictConfig) -> None:
        self.jobs.append(_current_job(composed, self._varied))

    def end_batch(self, returns: Sequence[JobReturn]) -> None:
        """Run the jobs of a batch and set their values, unless all jobs are known in advance."""
        if not self.jobs or self.jobs[0].sweeper == BASIC:
            return
        for job, value in zip(returns, self._run_batch(self.jobs), strict=True):
            job.return_value = value
            if isinstance(value, RunnerError):
                job.status = JobStatus.FAILED
        self.jobs = []


def compose_jobs(arguments: Sequence[str], run_batch: RunBatch) -> list[Job]:
    """Run the Hydra application with command-line ``arguments`` and return the composed jobs: one, or all of a sweep.

    The list is empty for ``--cfg``, ``--info`` and completion, which only print, and for a sweeper that chooses jobs by
    the results of earlier jobs. ``run_batch`` then runs the jobs, and the sweeper may end the sweep after an error.

    Raises ConfigError if the configuration cannot be composed, ResourceError if Hydra cannot write, and the error that
    ended a sweep in ``run_batch``.
    """
    job = single_job(arguments)
    with _errors_about(arguments):
        return _jobs_of_application(arguments, run_batch) if job is None else [job]


_SINGLE_JOB_OPTIONS = {"overrides", "run", "config_path", "config_name", "config_dir", "package"}


def single_job(arguments: Sequence[str]) -> Job | None:
    """Return the single job of a command line without Hydra's slower application; None if the application is needed.

    Raises ConfigError if the configuration cannot be composed.
    """
    _refuse_fixed(arguments)
    options, others = get_args_parser().parse_known_args(overrides_first(arguments, last=hydra_sweep.HYDRA_SETTINGS))
    _refuse_options(others, arguments)
    if {name for name, value in vars(options).items() if value} - _SINGLE_JOB_OPTIONS or _varied(arguments):
        return None
    with _errors_about(arguments):
        return _composed_alone(options)


def _composed_alone(options: argparse.Namespace) -> Job | None:
    config_dir = None if options.config_dir is None else Path(options.config_dir)
    name = options.config_name or CONFIG_NAME
    try:
        composed = _composed(options.overrides, options.config_path, name, config_dir, from_shell=True)
    except ConfigCompositionException as error:
        if str(error).startswith("You must specify"):  # a sweep can supply the missing choice
            return None
        raise
    settings: Any = composed.hydra
    needs_running_hydra = "${hydra:" in str(OmegaConf.to_container(settings.run, resolve=False))
    if settings.mode == RunMode.MULTIRUN or settings.callbacks or settings.verbose or needs_running_hydra:
        return None
    return _job_of(composed)


def _jobs_of_application(arguments: Sequence[str], run_batch: RunBatch) -> list[Job]:
    composer = _Composer(_varied(arguments), run_batch)
    register_schemas()
    version_base, conf = hydra_sweep.VERSION_BASE, str(conf_dir())
    application = hydra.main(version_base=version_base, config_path=conf, config_name=CONFIG_NAME)(composer)
    last = (*hydra_sweep.HYDRA_SETTINGS, PLAN_IN_PROCESS)
    try:
        with hydra_sweep.application_arguments(overrides_first(arguments, last=last)):
            application()
    except SystemExit as stop:
        # Hydra exits with 1 after it has printed an error about one of Hydra's options.
        raise SystemExit(ConfigError.exit_code if stop.code == 1 else stop.code) from stop
    return composer.jobs


def compose(
    overrides: Sequence[str],
    *,
    config_path: Path | None = None,
    config_name: str = CONFIG_NAME,
    config_dir: Path | None = None,
) -> Job:
    """Return the job that ``overrides`` describe, without running the Hydra application.

    config_path: the directory of the YAML files; None for the project's directory. config_name: the primary file.
    config_dir: a directory of the user's YAML files, searched after ``config_path``.
    Raises ConfigError if the configuration cannot be composed.
    """
    directory = None if config_path is None else str(config_path.absolute())
    with _errors_about(overrides):
        return _job_of(_composed(overrides, directory, config_name, config_dir))


def _composed(
    overrides: Sequence[str],
    config_path: str | None = None,
    config_name: str = CONFIG_NAME,
    config_dir: Path | None = None,
    *,
    from_shell: bool = False,
) -> DictConfig:
    """Return a composed configuration with Hydra's settings. Arguments: see :func:`_search_path`."""
    loader = ConfigLoaderImpl(_search_path(config_path, config_dir))
    return loader.load_configuration(config_name, list(overrides), RunMode.RUN, from_shell=from_shell)


def _search_path(config_path: str | None = None, config_dir: Path | None = None) -> ConfigSearchPath:
    """Return the places of YAML files for Hydra. config_path, config_dir: as Hydra's options of these names."""
    version.setbase(hydra_sweep.VERSION_BASE)
    setup_globals()
    JobRuntime.instance().set("name", hydra_sweep.PROGRAM)
    register_schemas()
    validate_config_path(config_path)
    found = create_automatic_config_search_path(None, __name__, config_path or str(conf_dir()))
    for own in yaml_folders(config_dir)[1:]:
        found.prepend("command-line", f"file://{own}", SearchPathQuery(provider="schema"))
    return found


def _job_of(composed: DictConfig) -> Job:
    """Return the single job of a composed configuration. Hydra's settings are removed; those of sweeps are refused."""
    for name in ("chdir", "env_set"):
        if composed.hydra.job[name]:
            raise ConfigError(f"hydra.job.{name}: only the jobs of a sweep (-m) use this setting; leave it out")
    run_dir, overrides = Path(composed.hydra.run.dir).absolute(), _texts(composed.hydra.overrides.task)
    with open_dict(composed):
        del composed["hydra"]
    return Job(composed, overrides, run_dir)


@contextmanager
def _errors_about(arguments: Sequence[str]) -> Iterator[None]:
    """Translate Hydra's errors within the block into RunnerErrors about ``arguments``."""
    try:
        yield
    except RunnerError:
        raise
    except Exception as error:
        raise _translated(error, arguments) from error


class RunComposer:
    """A composer of the configurations of many runs, much faster than repeated calls of :func:`compose`.

    The YAML files are read once, when a run first needs them.
    """

    def __init__(self, config_dir: Path | None = None) -> None:
        """config_dir: a directory of the user's YAML files, searched last."""
        self._config_dir = config_dir
        self._shared: SharedChoices | None = None

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Return the composed configuration of a run, without Hydra's settings.

        Raises ConfigError if the configuration cannot be composed, or for an override of a setting of Hydra.
        """
        with _errors_about(overrides):
            if self._shared is None:
                loader = RunLoader(_search_path(config_dir=self._config_dir), CONFIG_NAME)
                self._shared = SharedChoices(loader.choose, loader.files.group_exists)
            return self._shared.compose(overrides)


def compose_launcher(overrides: Sequence[str]) -> Launcher:
    """Return the launcher that overrides of Hydra's settings choose. Raises ConfigError for any other override."""
    if others := [text for text in overrides if not text.startswith(("hydra/launcher=", "hydra.launcher."))]:
        raise ConfigError(f"{' '.join(others)}: expected settings of the launcher, such as hydra/launcher=joblib")
    with _errors_about(overrides):
        return hydra_sweep.launcher_of(_composed(overrides).hydra)


def register_schemas() -> None:
    """Store the schemas of all sections under the names that the YAML files use: ``/schema/GROUP/NAME``."""
    schemas = _Schemas({"config": Config})
    schemas.update({group: _Schemas(options) for group, options in GROUPS.items()})
    ConfigStore.instance().repo["schema"] = schemas


class _Schemas(dict[str, Any]):
    """A group of Hydra's store: name of a file -> schema, which becomes a node only when it is read."""

    def __init__(self, options: Mapping[str, type]) -> None:
        super().__init__({f"{name}.yaml": schema for name, schema in options.items()})

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        return ConfigNode(name, structured(found), None, None, None) if isinstance(found, type) else found


@contextmanager
def options_without_yaml() -> Iterator[None]:
    """Until the block ends, let overrides choose options with a schema but no YAML file, such as those of plugins."""
    repo, conf = ConfigStore.instance().repo, conf_dir()
    every = ((group, name) for group, table in GROUPS.items() for name in table)
    options = [(group, name) for group, name in every if not (conf / group / f"{name}.yaml").is_file()]
    options = [(group, name) for group, name in options if f"{name}.yaml" not in repo.get(group, ())]
    for group, name in options:
        node = {"defaults": [f"/schema/{group}/{name}@_here_", "_self_"], "name": name}
        ConfigStore.instance().store(group=group, name=name, node=node)
    try:
        yield
    finally:
        for group, name in options:
            del repo[group][f"{name}.yaml"]


def _current_job(composed: DictConfig, varied: Collection[str]) -> Job:
    settings = HydraConfig.get()
    overrides = _texts(settings.overrides.task)
    place = launcher = trials = None
    sweeper = BASIC
    if settings.mode == RunMode.MULTIRUN:
        names = {*varied, *(settings.sweeper.get("params") or {})}
        pairs = (override.partition("=") for override in overrides)
        swept = {name.lstrip("+"): value for name, _, value in pairs if name in names}
        place = SweepPlace(Path(settings.sweep.dir).absolute(), settings.job.num, swept)
        launcher, sweeper = hydra_sweep.launcher_of(settings), hydra_sweep.sweeper_of(settings)
        trials = settings.sweeper.get("n_trials")
    return Job(composed, overrides, Path(settings.runtime.output_dir), place, launcher, sweeper, trials)


def _texts(overrides: Any) -> list[str]:
    """Return overrides as the user gave them, without resolving interpolations."""
    texts: Any = OmegaConf.to_container(overrides, resolve=False)
    return list(texts)


def _refuse_fixed(arguments: Sequence[str]) -> None:
    """Raise ConfigError for an argument that would have no effect, because its setting is fixed."""
    fixed = {setting.partition("=")[0]: setting for setting in hydra_sweep.HYDRA_SETTINGS}
    for argument in arguments:
        name = argument.partition("=")[0].lstrip("+")
        if name in fixed:
            raise ConfigError(f"{argument}: cannot be changed; the setting is always {fixed[name]}")


def _refuse_options(others: Sequence[str], arguments: Sequence[str]) -> None:
    """Raise ConfigError for options among ``others``, the part of ``arguments`` that a parser did not accept."""
    if unknown := [argument for argument in others if argument.startswith("-")]:
        following = dict(pairwise([*arguments, None]))
        raise ConfigError("\n".join(unknown_command_line_option(each, following.get(each)) for each in unknown))


def _varied(arguments: Sequence[str]) -> set[str]:
    """Return the keys that the overrides among ``arguments`` set to more than one value."""
    parser = OverridesParser.create()
    found = set()
    for argument in arguments:
        if "=" in argument and not argument.startswith("-"):
            with suppress(HydraException):  # Hydra reports the error later
                override = parser.parse_override(argument)
                if override.is_sweep_override():
                    found.add(override.get_key_element())
    return found


def _translated(error: Exception, arguments: Sequence[str]) -> RunnerError:
    if isinstance(error, OverrideParseException):
        return ConfigError("\n".join(filter(None, (describe(error), quoting_hint(error.override)))))
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        return ConfigError(unknown_option(str(error), error.missing_cfg_file, error.options))
    if isinstance(error, HydraException | OmegaConfBaseException):
        return ConfigError(describe(error))
    if isinstance(error, OSError):
        return ResourceError(
            f"cannot write {error.filename}: {error.strerror}; choose a writable directory with "
            "hydra.run.dir=DIR (hydra.sweep.dir=DIR for a sweep)"
        )
    is_null = isinstance(error, AttributeError | AssertionError) and "None" in str(error)
    return ConfigError((null_section(arguments) if is_null else None) or f"{' '.join(arguments)}: {error}")


def overridden(
    config: Config, overrides: Sequence[str], allowed: Iterable[str], refusal: str, *, config_dir: Path | None = None
) -> dict[str, Any]:
    """Return ``config`` as plain data with the changes of ``overrides`` ("KEY=VALUE").

    allowed: the keys that may be overridden; a section or group allows all of its keys. GROUP=OPTION replaces the
    stored section by the option's section in the YAML files of the project or of ``config_dir``, or by the defaults of
    a plugin's option. Overrides of single keys are applied afterwards; they can add a section, such as a callback's.
    refusal: the error message for all other keys. Names and values are not checked.

    Raises ConfigError for an override that is not allowed or not YAML, or that names an unknown option or section.
    """
    plain = to_plain(config)
    pairs = [_pair(override, set(allowed), refusal) for override in overrides]
    for name, text in pairs:
        if name in GROUPS:
            with options_without_yaml():
                composed = compose([f"{name}={text}"], config_dir=config_dir).composed[name]
            plain[name] = OmegaConf.to_container(composed, resolve=True)
    for name, text in pairs:
        if name not in GROUPS:
            _set(plain, name, text)
    release_other_limit(plain, overrides)
    return plain


def _pair(override: str, allowed: set[str], refusal: str) -> tuple[str, str]:
    name, is_pair, text = override.partition("=")
    parts = name.split(".")
    if not is_pair or not any(".".join(parts[:length]) in allowed for length in range(1, len(parts) + 1)):
        raise ConfigError(f"{override}: {refusal}")
    return name, text


def _set(plain: dict[str, Any], name: str, text: str) -> None:
    *sections, key = name.split(".")
    inner: Any = plain
    for section in sections:
        inner = inner.setdefault(section, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise ConfigError(f"{name}={text}: there is no section {'.'.join(sections)}")
    try:
        inner[key] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}={text}: expected a value in YAML") from error
