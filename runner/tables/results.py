"""Results of a table: committed JSON files that are never changed, ``results/TABLE/RUN/NAME.json``.

NAME is ``count``, ``simulated`` or ``seed-N``, then a dot and the first digits of the SHA-256 of the configuration. If
the configuration of a run is changed, new results have other names, and results of the earlier design stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.config.configuration import to_plain
from runner.config.outcome import differing_keys, with_defaults
from runner.config.schema import Config
from runner.errors import DataError
from runner.records.summary import config_hash
from runner.system.files import create_directory, writing
from runner.system.json_file import JsonFile
from runner.system.redaction import redact
from runner.system.schema import LenientRecord
from runner.tables.table import COUNT, Table

FOLDER = "results"
_DIGITS = 8
_OTHER_FOLDER = "choose another folder with --results DIR"


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one evaluation. updates, examples: numbers of updates and of training examples before it."""

    updates: int
    examples: int
    values: dict[str, float]


@dataclass(frozen=True)
class ResultOrigin:
    """The origin of a result.

    commit: commit of the code, with the suffix "-dirty" if files were changed; "" outside of a repository. criteria:
    the result of :meth:`~runner.tables.table.Table.criteria` when the run was started. versions: versions of Python and
    of libraries. machine: the facts that can change the last bits of a run's values: the CPU, the device, the threads
    and libraries (see :func:`kind_of`). data: digest of the examples. first_steps: SHA-256 of the weights after the
    first updates; "" if they depend on the order of concurrent processes. data, machine and first_steps are found
    before the run. seconds: wall time of the process that ended the run. directory: directory of the run, relative to
    the working directory. mlflow_run: identifier of the run in MLflow.
    """

    commit: str = ""
    criteria: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    data: str = ""
    first_steps: str = ""
    weights_sha256: str = ""
    seconds: float = 0.0
    directory: str = ""
    mlflow_run: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "machine", kind_of(self.machine))


def kind_of(machine: Mapping[str, str]) -> dict[str, str]:
    """Return the facts about a machine by which results are compared, with only major and minor version of Python."""
    return {name: ".".join(fact.split(".")[:2]) if name == "python" else fact for name, fact in machine.items()}


@dataclass(frozen=True)
class Result:
    """The values of one run with one seed or, for a count or a simulation, without a seed.

    kind: kind of the table. configuration: the composed configuration as plain values, before machine-dependent values
    are filled in. A later change of the configuration is found by comparison, even if keys are renamed. values: name of
    a size, time or other reading -> value. evaluations: the evaluations of a training run, in order. failure: the error
    that ended the run early, so that its final metrics count as not finite; "" for none. against: SHA-256 of the
    weights of the run with which this run was compared; "" for none.
    """

    kind: str
    configuration: dict[str, Any]
    values: dict[str, float]
    seed: int | None = None
    evaluations: tuple[Evaluation, ...] = ()
    failure: str = ""
    against: str = ""
    origin: ResultOrigin = field(default_factory=ResultOrigin)


BEGUN_FILE = "begun.json"
"""The file in the directory of a job with the origin of its result, except facts known only after the run."""

BEGUN: JsonFile[ResultOrigin] = JsonFile(
    LenientRecord(ResultOrigin, complete=False), DataError, "delete the directory to run the job again"
)


@dataclass(frozen=True)
class Estimate:
    """The estimated time of one seed of a run. cpu: CPU model and number of cores used for the measured updates."""

    seconds: float
    cpu: str


@dataclass(frozen=True)
class Estimates:
    """Estimated times of runs. runs: "RUN.DIGITS", with the first digits of the configuration's hash -> estimate."""

    runs: dict[str, Estimate] = field(default_factory=dict)


_ESTIMATES_FILE = "estimates.json"
"""The file in the folder of a table's results with the estimated times of its runs."""

_ESTIMATES: JsonFile[Estimates] = JsonFile(
    LenientRecord(Estimates, complete=False), DataError, "delete the file; `runner table run` estimates again"
)

_FILE: JsonFile[Result] = JsonFile(
    LenientRecord(Result, complete=False),
    DataError,
    "restore the file, or delete it and run the table again",
    indent=None,
)


def folder_of(table: Path) -> Path:
    """Return the folder of a table's committed results.

    table: its file ``conf/table/NAME.yaml``, or ``DIR/table/NAME.yaml`` in another folder DIR of YAML files.
    """
    return table.parents[2] / FOLDER / table.stem


def result_name(config: Config, seed: int | None, kind: str = COUNT) -> str:
    """Return the name, without folder and ``.json``, of the result of a configuration. kind: kind of the table."""
    return f"{kind if seed is None else f'seed-{seed}'}.{_digits_of(config)}"


def _digits_of(config: Config) -> str:
    return config_hash(to_plain(config))[:_DIGITS]


def write_result(folder: Path, run: str, config: Config, result: Result) -> Path:
    """Write the result of a run, without secrets, into the folder of a table's results; return its path.

    Raises ResourceError if the file cannot be written.
    """
    path = folder / run / f"{result_name(config, result.seed, result.kind)}.json"
    with writing(str(path), _OTHER_FOLDER):
        create_directory(path.parent)
        _FILE.write(path, replace(result, configuration=redact(result.configuration)))
    return path


def read_estimates(folder: Path, configs: Mapping[str, Config]) -> dict[str, Estimate]:
    """Return run -> estimate, for runs with an estimate of their present configuration. Raises DataError."""
    path = folder / _ESTIMATES_FILE
    found = _ESTIMATES.read(path).runs if path.exists() else {}
    keys = {run: f"{run}.{_digits_of(config)}" for run, config in configs.items()}
    return {run: found[key] for run, key in keys.items() if key in found}


def write_estimates(folder: Path, configs: Mapping[str, Config], estimates: Mapping[str, Estimate]) -> None:
    """Write run -> estimate into the folder of a table's results. Raises ResourceError if that fails."""
    runs = {f"{run}.{_digits_of(configs[run])}": each for run, each in estimates.items()}
    with writing(str(folder / _ESTIMATES_FILE), _OTHER_FOLDER):
        create_directory(folder)
        _ESTIMATES.write(folder / _ESTIMATES_FILE, Estimates(runs))


@dataclass(frozen=True)
class RunResults:
    """The results of one run.

    current: seed (None for a count or a simulation) -> result for the present configuration. files: seed -> file of
    that result. earlier: results of earlier designs, each with the keys that differ from the present configuration.
    """

    current: Mapping[int | None, Result] = field(default_factory=dict)
    files: Mapping[int | None, Path] = field(default_factory=dict)
    earlier: Sequence[tuple[Result, Sequence[str]]] = ()

    @property
    def changed_keys(self) -> str:
        """The keys, as text, that differ in the ``earlier`` result with the fewest differing keys, or ""."""
        return min((", ".join(keys) for _, keys in self.earlier), key=lambda text: (text.count(","), text), default="")


def read_results(folder: Path, table: Table, configs: Mapping[str, Config]) -> dict[str, RunResults]:
    """Return run -> results, from the folder of a table's results. Raises DataError for a damaged file.

    configs: run -> present configuration. Results of seeds that the table no longer has are of an earlier design.
    """
    return {run: _of_run(folder / run, table.seeds or (None,), config) for run, config in configs.items()}


def _of_run(folder: Path, seeds: Sequence[int | None], config: Config) -> RunResults:
    current: dict[int | None, Result] = {}
    files: dict[int | None, Path] = {}
    earlier = []
    for file in sorted(folder.glob("*.json")):
        result = _FILE.read(file)
        own = config if result.seed is None else replace(config, seed=result.seed)
        keys = differing_keys(with_defaults(result.configuration, own), redact(to_plain(own)))
        if result.seed not in seeds:
            keys = [*keys, f"seed {result.seed}, which was removed"]
        if keys:
            earlier.append((result, keys))
        elif result.seed in files and files[result.seed].stem == result_name(own, result.seed, result.kind):
            continue  # this result has an equal configuration with older names of keys
        else:
            current[result.seed], files[result.seed] = result, file
    return RunResults(current, files, earlier)
