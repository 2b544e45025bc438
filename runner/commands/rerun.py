"""The verb ``rerun``: repeat a stored run and compare the weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from runner.commands.compare import difference_rows, differences_of_origin, named_run
from runner.commands.results import results_table
from runner.config.configuration import load_stored
from runner.config.devices import Look, retake_devices
from runner.config.outcome import changes_on_the_way
from runner.config.schema import Config, StragglersConfig
from runner.kernels.gpu.discovery import discover
from runner.plugin import changed_plugins, plugin_notes
from runner.records.stored_run import StoredRun, read_plugins, read_run
from runner.system.console import verb_parser
from runner.system.text import text_table

_ENDINGS = "endings-1.jsonl"


@dataclass(frozen=True)
class Repetition:
    """config: to train. replayed: the record of what the configuration does not decide, None where it decides all or
    where there is none. doubt: why the same weights are not promised, "" where they are."""

    config: Config
    replayed: Path | None = None
    doubt: str = ""


def repetition_here(config: Config, run: StoredRun, look: Look = discover) -> Repetition:
    """How to repeat ``run`` on the devices that there are: where they are others than it had, no record is replayed.

    Raises ResourceError for a GPU that was asked for and is not there, and what :func:`repetition_of` raises.
    """
    here, other = retake_devices(config, look)
    if other:
        return Repetition(here, doubt=other)
    # By what is stored, as the record is of that; which GPUs of this machine compute it is no part of the record.
    repetition = repetition_of(config, run)
    cluster = replace(repetition.config.cluster, gpus=here.cluster.gpus)
    return replace(repetition, config=replace(repetition.config, cluster=cluster))


def repetition_of(config: Config, run: StoredRun) -> Repetition:
    """How to repeat ``run``, whose last configuration is ``config``: by its record where its workers raced.

    Raises ConfigError and SecurityError where a configuration by which earlier starts went cannot be read.
    """
    changes = list(changes_on_the_way(run.earlier_configurations, config))
    if changes:
        said = f"it was started {run.starts} times and changed on the way: {'; '.join(changes)}"
        return Repetition(config, doubt=f"{said}. All its steps are made as the last ones were to be")
    race = config.parallelism.race
    if race is None or race.decided:
        return Repetition(config)
    if race.decisions is None and run.starts > 1:
        return Repetition(
            config, doubt=f"{race.racers} raced, and it was started {run.starts} times: its records are of pieces"
        )
    record = run.path / (_ENDINGS if race.decisions is None else f"{race.decisions}.jsonl")
    if not record.is_file():
        return Repetition(config, doubt=f"{race.racers} raced, and {record} is not there")
    config = replace(config, parallelism=config.parallelism.replaying(str(record)))
    if race.decisions is None:
        # The record says in which order all clients ended, so the one process emulates no delays.
        cluster = replace(config.cluster, one_process=None, emulate=False, stragglers=StragglersConfig())
        config = replace(config, cluster=cluster)
    return Repetition(config, record)


SAME, OTHER = 0, 1
"""Exit codes: the weights came out the same, or did not or cannot be told to have."""

_EXAMPLE = """\
The run starts from step 0 with its stored configuration, in a directory of its own. Where its workers raced, the record
of their order is replayed. Exit code 0: weights_sha256 came out the same; 1: it did not.

examples:
  runner rerun outputs/2026-01-31/12-00-00
  runner rerun 4f1c --output again"""


def main(arguments: Sequence[str]) -> int:
    """Repeat a stored run, print its results and the verdict; return :data:`SAME` or :data:`OTHER`."""
    parser = verb_parser("rerun", "Train a stored run again and say whether it came to the same weights.", _EXAMPLE)
    parser.add_argument("run", metavar="RUN", help="directory or run id")
    parser.add_argument("--output", type=Path, metavar="DIR", help="directory of the new run (default: below outputs)")
    options = parser.parse_args(arguments)
    first = named_run(options.run)
    output = (options.output or Path("outputs", f"{datetime.now():%Y-%m-%d/%H-%M-%S}-rerun")).absolute()
    repetition = repetition_here(load_stored(first.config_yaml), first)
    for note in _notes(first, repetition):
        print(note, file=sys.stderr, flush=True)
    second = _train(first, repetition, output)
    print(verdict(first, second, repetition.doubt))
    return SAME if _same(first, second) else OTHER


def _train(first: StoredRun, repetition: Repetition, output: Path) -> StoredRun:
    from runner.training.run import run

    overrides = [] if first.summary is None else first.summary.overrides
    summary = run(repetition.config, output, overrides=overrides, repeats=first.run_id)
    print(results_table(summary), end="\n\n")
    return read_run(output)


def _notes(first: StoredRun, repetition: Repetition) -> Iterator[str]:
    """What a user should know before it starts."""
    if _weights(first) is None:
        status = "killed" if first.summary is None else first.summary.status
        yield f"run {first.run_id} was {status}: it has no weights_sha256 to compare with"
    if repetition.replayed is not None:
        yield f"the order in which workers came is that of {repetition.replayed}"
    if repetition.doubt:
        yield f"the same weights are not promised: {repetition.doubt}"
    plugins = read_plugins(first.path)
    yield from map(str, changed_plugins(plugins or {}))
    yield from plugin_notes(plugins)
    started = None if first.summary is None else first.summary.provenance
    if started is not None and started.working_directory != str(Path.cwd()):
        yield f"it was started in {started.working_directory}; relative paths of its configuration are looked for here"


def verdict(first: StoredRun, second: StoredRun, doubt: str) -> str:
    """Whether two runs came to the same weights and, where not, what may be the reason."""
    if _same(first, second):
        return f"the same weights as run {first.run_id}: weights_sha256 {_weights(second)}"
    before = _weights(first)
    if before is None:
        return f"not compared: run {first.run_id} has no weights_sha256"
    return "\n".join(
        [f"other weights than run {first.run_id}, which came to {before}", *_reasons(first, second, doubt)]
    )


def _reasons(first: StoredRun, second: StoredRun, doubt: str) -> Iterator[str]:
    if doubt:
        yield f"they were not promised to be the same: {doubt}"
    rows = difference_rows(differences_of_origin(first, second))
    if rows:
        yield text_table(("different", first.run_id, second.run_id), rows)
    else:
        yield "code, versions and machine are the same as far as they are recorded"


def _same(first: StoredRun, second: StoredRun) -> bool:
    return _weights(second) is not None and _weights(first) == _weights(second)


def _weights(run: StoredRun) -> str | None:
    return None if run.summary is None else run.summary.weights_sha256
