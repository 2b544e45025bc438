"""The sizes of the networks of a table: parameters and multiply-adds, counted in the graph of a configuration."""

from collections.abc import Mapping
from pathlib import Path

from runner.config.configuration import fix_machine_values, to_plain
from runner.config.hydra_app import compose
from runner.config.schema import Config
from runner.errors import ConfigError
from runner.records.summary import git_commit, versions
from runner.system.machine import usable_cores
from runner.tables.results import Result
from runner.tables.table_file import COUNT, PARAMETERS, Column, Table
from runner.training.build import build
from runner.training.layers import layer_rows


def composed(table: Table) -> dict[str, Config]:
    """Return run -> checked configuration. Raises ConfigError, naming the run."""
    found = {}
    for run in table.runs:
        try:
            found[run] = compose(table.overrides(run)).config()
        except ConfigError as error:
            raise ConfigError(f"runs.{run}: {error}") from error
    return found


def counted(config: Config, columns: Mapping[str, Column]) -> Result:
    """Return the sizes that the columns read. The graph is built for one example; nothing is trained."""
    rows = layer_rows(build(fix_machine_values(config, usable_cores())))
    values = {}
    for name, column in columns.items():
        chosen = [row for row in rows if not column.layers or row.kind in column.layers]
        counts = (row.parameters if column.read == PARAMETERS else row.multiply_adds for row in chosen)
        values[name] = float(sum(counts))
    commit = git_commit(Path(__file__).parent) or ""
    return Result(COUNT, values, to_plain(config), commit, versions())
