"""The sizes of the networks of a table: parameters and multiply-adds, counted in the graph of a configuration."""

from collections.abc import Mapping

from runner.config.configuration import fix_machine_values, to_plain
from runner.config.schema import Config
from runner.system.machine import usable_cores
from runner.tables.results import Result, ResultOrigin
from runner.tables.table import COUNT, PARAMETERS, Column
from runner.training.build import build
from runner.training.layers import layer_rows


def count_sizes(config: Config, columns: Mapping[str, Column], origin: ResultOrigin) -> Result:
    """Return the sizes that the columns read. The graph is built for one example; nothing is trained."""
    rows = layer_rows(build(fix_machine_values(config, usable_cores())))
    values = {}
    for column in columns.values():
        chosen = [row for row in rows if not column.layers or row.kind in column.layers]
        counts = (row.parameters if column.read == PARAMETERS else row.multiply_adds for row in chosen)
        values[column.size] = float(sum(counts))
    return Result(COUNT, to_plain(config), values, origin=origin)
