"""Results of a table: committed JSON files that are never changed, ``results/TABLE/RUN/NAME.json``.

NAME is ``count``, or ``seed-`` and the seed, with the first digits of the SHA-256 of the configuration. If the design
of a run is changed, its new results have other names, and the earlier ones stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.config.configuration import to_plain
from runner.config.outcome import differing_keys, with_defaults
from runner.config.schema import Config
from runner.errors import DataError, ResourceError
from runner.records.summary import config_hash
from runner.system.files import create_directory
from runner.system.json_file import JsonFile
from runner.system.schema import LenientRecord
from runner.tables.table import Table

FOLDER = "results"
_DIGITS = 8


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one evaluation. updates, examples: numbers of updates and of training examples before it."""

    updates: int
    examples: int
    values: dict[str, float]


@dataclass(frozen=True)
class Origin:
    """Where a result comes from.

    commit: commit of the code, with the suffix "-dirty" if files were changed; "" outside of a repository. table_file:
    SHA-256 of the file of the table when the result was written. versions: versions of Python and of libraries.
    machine: of a run, the facts that can change the last bits of its values: the model of the CPU, devices, kernels and
    threads. data: digest of the contents of the dataset, with its limits. first_steps: SHA-256 of the weights after the
    first updates; "" if the order of concurrent clients decides them. seconds: of the whole run. directory, mlflow_run:
    directory of the run below the working directory, and its identifier in MLflow.
    """

    commit: str = ""
    table_file: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    data: str = ""
    first_steps: str = ""
    weights_sha256: str = ""
    seconds: float = 0.0
    directory: str = ""
    mlflow_run: str = ""


@dataclass(frozen=True)
class Result:
    """The values of one run, for a count, or of one run and seed.

    kind: kind of the table. configuration: the composed configuration as plain values, before machine-dependent values
    are filled in, so that a later change of the configuration is found, even if keys are renamed. values: column ->
    count, or reading -> value. evaluations: of a training run, in their order. failure: why the run has no final
    metrics, which then count as values that are not finite.
    """

    kind: str
    configuration: dict[str, Any]
    values: dict[str, float]
    seed: int | None = None
    evaluations: tuple[Evaluation, ...] = ()
    failure: str = ""
    origin: Origin = field(default_factory=Origin)


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


def result_name(config: Config, seed: int | None) -> str:
    """Return the name, without folder and ``.json``, of the result of a configuration."""
    digits = config_hash(to_plain(config))[:_DIGITS]
    return f"count.{digits}" if seed is None else f"seed-{seed}.{digits}"


def write_result(folder: Path, run: str, config: Config, result: Result) -> Path:
    """Write the result of a run into the folder of a table's results; return its path.

    Raises ResourceError if the file cannot be written.
    """
    path = folder / run / f"{result_name(config, result.seed)}.json"
    try:
        create_directory(path.parent)
        _FILE.write(path, result)
    except OSError as error:
        raise ResourceError(
            f"{path}: cannot be written: {error.strerror}; choose a folder of yours with --results DIR"
        ) from error
    return path


@dataclass(frozen=True)
class RunResults:
    """The results of one run.

    current: seed (None for a count) -> result for the present configuration. earlier: results of earlier designs, each
    with the keys in which its configuration differs from the present one.
    """

    current: Mapping[int | None, Result] = field(default_factory=dict)
    earlier: Sequence[tuple[Result, Sequence[str]]] = ()

    @property
    def changed_keys(self) -> str:
        """The keys, as text, in which the newest earlier design differs; "" if there is none."""
        return ", ".join(self.earlier[-1][1]) if self.earlier else ""


def read_results(folder: Path, table: Table, configs: Mapping[str, Config]) -> dict[str, RunResults]:
    """Return run -> results, from the folder of a table's results. Raises DataError for a damaged file.

    configs: run -> its present configuration. Results of seeds that the table does not name any more are left out.
    """
    return {run: _of_run(folder / run, table.seeds or (None,), config) for run, config in configs.items()}


def _of_run(folder: Path, seeds: Sequence[int | None], config: Config) -> RunResults:
    current: dict[int | None, Result] = {}
    earlier = []
    for file in sorted(folder.glob("*.json")):
        result = _FILE.read(file)
        if result.seed not in seeds:
            continue
        own = config if result.seed is None else replace(config, seed=result.seed)
        if keys := differing_keys(with_defaults(result.configuration, own), to_plain(own)):
            earlier.append((result, keys))
        else:
            current[result.seed] = result
    return RunResults(current, earlier)
