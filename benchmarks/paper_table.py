"""``python -m benchmarks table NAME``: measure a table of the kind ``benchmark``; see its ``--help``.

In a round, each network is computed by one library after the other, each in a new process: with the batches of papers,
not all libraries fit into memory together. Each round begins with the next library, and has its own initial weights.
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.alternate import SETTLING, rotated
from benchmarks.environments import MissingEnvironmentError, python_of
from benchmarks.experiments import prepare
from benchmarks.process import SubjectError, SubjectProcess
from benchmarks.results import TOLERANCES
from benchmarks.subjects import OURS, PEERS, SubjectSpec
from runner.commands.table_files import TableFiles, TableReader
from runner.commands.table_run import require_reasons
from runner.config.conf_dir import yaml_folders
from runner.config.configuration import to_plain
from runner.config.schema import Config
from runner.errors import ConfigError, RunnerError
from runner.sweeps.locks import table_lock
from runner.system.machine import usable_cores
from runner.tables.measured import kind_of_machine
from runner.tables.results import Result, write_result
from runner.tables.table import BENCHMARK
from runner.tables.table_file import find_table

PHASE = "gradients"
TURN_S = 5.0
"""A turn has one timed step, and further ones until it lasts about this long."""

SUBJECTS: Mapping[str, SubjectSpec] = {spec.name: spec for spec in (OURS, *PEERS)}
"""What a column of a benchmark reads -> the implementation."""


@dataclass(frozen=True)
class Turn:
    """The steps of one library in one round, without the discarded ones. loss: of the first."""

    seconds: Sequence[float]
    loss: float
    versions: Mapping[str, str]


def measure_table(files: TableFiles) -> list[str]:
    """Measure the missing rounds, and write each one immediately; return the failures, whose rounds remain missing.

    Raises ConfigError if the table is no benchmark or if a run or a library cannot be measured,
    MissingEnvironmentError, DirectoryInUseError if another process measures the table.
    """
    table, failures = files.table, []
    specs = {run: _subjects(files, run) for run in table.runs}
    require_reasons(files, table.runs)
    with table_lock(files.folder):
        for number, seed in enumerate(table.seeds):
            for run in (run for run in table.runs if seed not in files.results()[run].current):
                try:
                    result = measure_round(files, run, seed, rotated(specs[run], number))
                except SubjectError as error:
                    failures.append(f"{run}, round {seed}: {error}")
                    print(failures[-1], file=sys.stderr, flush=True)
                    continue
                written = write_result(files.folder, run, replace(files.configs[run], seed=seed), result)
                print(f"{run}, round {seed}, {result.origin.seconds:.0f} s: {written}", file=sys.stderr, flush=True)
    return failures


def measure_round(files: TableFiles, run: str, seed: int, specs: Sequence[SubjectSpec]) -> Result:
    """Time one network in all libraries. Raises SubjectError if one fails or computes another loss than the first."""
    config, started, turns = replace(files.configs[run], seed=seed), time.monotonic(), dict[str, Turn]()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        prepare([*files.table.overrides(run), f"seed={seed}"], Path(name))
        for spec in specs:
            try:
                turns[spec.name] = take_turn(spec.on(name), config, Path(name) / f"{spec.name}.log")
            except SubjectError as error:
                raise SubjectError(f"{spec.name}: {error}") from error
    _require_same_loss(turns, TOLERANCES[config.precision].of_loss)
    found = {name: version for turn in turns.values() for name, version in turn.versions.items()}
    origin = files.origin()
    origin = replace(
        origin,
        versions={**origin.versions, **found},
        machine={**kind_of_machine(config), "cores": str(usable_cores())},
        seconds=time.monotonic() - started,
    )
    values = {name: statistics.median(turn.seconds) for name, turn in turns.items()}
    return Result(BENCHMARK, to_plain(config), values, seed, origin=origin)


def take_turn(spec: SubjectSpec, config: Config, log: Path) -> Turn:
    """Start a library and time its steps, after discarded ones. Raises SubjectError."""
    threads = config.cluster.threads_per_worker
    assert threads is not None, "the file of a table states the threads"
    with SubjectProcess(spec, threads=threads, log=log) as process:
        versions = process.ask("start")["versions"]
        process.ask("load")
        first = process.ask("run", phase=PHASE, times=SETTLING + 1)
        seconds = first["seconds"][SETTLING:]
        if (more := math.ceil(TURN_S / seconds[0]) - 1) > 0:
            seconds += process.ask("run", phase=PHASE, times=more)["seconds"]
    return Turn(seconds, first["losses"][-1], versions)


def _require_same_loss(turns: Mapping[str, Turn], tolerance: float) -> None:
    first, *others = turns
    expected = turns[first].loss
    for name in others:
        if not abs(turns[name].loss - expected) <= tolerance * abs(expected):
            raise SubjectError(f"{name}: loss {turns[name].loss}, expected {expected} as by {first}")


def _subjects(files: TableFiles, run: str) -> list[SubjectSpec]:
    """Return the libraries that the cells of a run read. Raises ConfigError, MissingEnvironmentError."""
    table, config = files.table, files.configs[run]
    if table.kind != BENCHMARK:
        raise ConfigError(f"{files.path}: kind: {table.kind!r}, expected {BENCHMARK}; run `runner table run` instead")
    if config.precision not in TOLERANCES:
        raise ConfigError(f"runs.{run}: precision={config.precision}: expected float32 or bfloat16 in a benchmark")
    columns = dict.fromkeys(column for row, column, _ in table.cells() if table.rows[row].run == run)
    reads = {name: table.columns[name].read for name in columns if table.columns[name].read}
    for name, read in reads.items():
        if read not in SUBJECTS:
            raise ConfigError(f"{files.path}: columns.{name}.read: {read!r}, expected one of {', '.join(SUBJECTS)}")
        python_of(SUBJECTS[read].environment)
    return [SUBJECTS[read] for read in dict.fromkeys(reads.values())]


def main(arguments: Sequence[str]) -> int:
    """Measure the missing rounds of a table; return 1 if one remains missing."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks table",
        description="Measure the missing rounds of a table of the kind benchmark, on a machine without other work. A "
        "second start continues the first one. `runner table show NAME` prints the table.",
    )
    parser.add_argument("name", metavar="NAME", help="the table, such as one_machine")
    parser.add_argument("--config-dir", "-cd", type=Path, metavar="DIR", help="your own YAML files, with DIR/table")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="folder of the results (default: the committed ones)"
    )
    given = parser.parse_args(arguments)
    try:
        path = find_table(given.name, yaml_folders(given.config_dir))
        return 1 if measure_table(TableReader(given.config_dir, given.results).read(path)) else 0
    except (RunnerError, MissingEnvironmentError) as error:
        print(error, file=sys.stderr)
        return 1
