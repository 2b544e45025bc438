"""The files of a table: its YAML file, from which the configurations of its runs are composed, and its results."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.config.conf_dir import conf_dir
from runner.config.configuration import from_composed
from runner.config.hydra_app import RunComposer
from runner.config.schema import Config
from runner.errors import ConfigError
from runner.records.summary import cpu_model, git_commit, versions
from runner.system.machine import usable_cores
from runner.tables.cells import TableState, state_of
from runner.tables.results import (
    Estimate,
    ResultOrigin,
    RunResults,
    folder_of,
    read_estimates,
    read_results,
    write_estimates,
)
from runner.tables.table import COMPUTED, Table
from runner.tables.table_file import read_table


@dataclass(frozen=True)
class TableFiles:
    """A table with its configurations and the folder of its results.

    path: the table's YAML file. configs: run -> its present configuration. folder: the folder of the results.
    """

    table: Table
    path: Path
    configs: Mapping[str, Config]
    folder: Path

    def results(self) -> dict[str, RunResults]:
        return read_results(self.folder, self.table, self.configs)

    def seconds(self, results: Mapping[str, RunResults]) -> dict[str, float]:
        """Return run -> seconds of one seed: the longest measured time, or the estimate of ``runner table run``."""
        estimated = {run: each.seconds for run, each in read_estimates(self.folder, self.configs).items()}
        known = {run: [each.origin.seconds for each in found.current.values()] for run, found in results.items()}
        return estimated | {run: max(seconds) for run, seconds in known.items() if seconds}

    def write_estimate(self, run: str, seconds: float) -> None:
        new = Estimate(seconds, f"{cpu_model()}, {usable_cores()} cores")
        write_estimates(self.folder, self.configs, {**read_estimates(self.folder, self.configs), run: new})

    def origin(self) -> ResultOrigin:
        commit = git_commit(Path(__file__).parent) or ""
        return ResultOrigin(commit, self.table.criteria(), versions())


class TableReader:
    """A reader of several tables; each YAML file of a configuration is read only once."""

    def __init__(self, config_dir: Path | None = None, results: Path | None = None) -> None:
        """config_dir: folder of the user's YAML files. results: folder of all results; None for the committed ones."""
        self._stored, self._own = RunComposer(), RunComposer(config_dir)
        self._results = results

    def read(self, path: Path) -> TableFiles:
        """Read the file of a table and compose its runs. Raises ConfigError, naming a run that cannot be composed."""
        table = read_table(path)
        composer = self._stored if path.is_relative_to(conf_dir()) else self._own
        configs = {run: _composed(table, run, composer) for run in table.runs}
        folder = folder_of(path) if self._results is None else self._results / path.stem
        return TableFiles(table, path, configs, folder)


def current(files: TableFiles) -> TableState:
    """Return a table with its stored results and the verdicts on its cells and claims."""
    return state_of(files.table, files.results())


def _composed(table: Table, run: str, composer: RunComposer) -> Config:
    overrides = table.overrides(run)
    try:
        config = from_composed(composer.compose(overrides), overrides)
    except ConfigError as error:
        raise ConfigError(f"runs.{run}: {error}") from error
    if table.kind not in COMPUTED and config.cluster.threads_per_worker is None:
        raise ConfigError(
            f"runs.{run}: cluster.threads_per_worker is null; expected a number, because sums depend on the threads"
        )
    return config
