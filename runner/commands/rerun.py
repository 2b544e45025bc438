"""The verb ``rerun``: repeat a stored run and compare the weights of both runs."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from runner.commands.compare import difference_rows, differences_of_origin, named_run
from runner.commands.plugins import require_session_classes
from runner.commands.train import results_table
from runner.config.configuration import load_stored
from runner.config.devices import FindGpus, reassign_devices
from runner.config.outcome import configuration_changes
from runner.config.schema import Config, for_one_process
from runner.kernels.gpu.discovery import discover
from runner.plugin import changed_plugins, plugin_notes
from runner.records.stored_run import StoredRun, earlier_configurations, read_plugins, read_run
from runner.system.console import verb_parser
from runner.system.text import text_table

_ENDINGS = "endings-1.jsonl"


@dataclass(frozen=True)
class Repetition:
    """A plan to repeat a run.

    config: the configuration to train. replayed: path of the record to replay, of decisions that the configuration does
    not determine; None for none. doubt: the reason why equal weights are not guaranteed; "" if they are guaranteed.
    """

    config: Config
    replayed: Path | None = None
    doubt: str = ""


def repetition_here(config: Config, run: StoredRun, find: FindGpus = discover) -> Repetition:
    """Return the plan to repeat a run on this machine. If this machine has other devices, no record is replayed.

    Raises ResourceError if a requested GPU is not available, and the errors of :func:`repetition_of`.
    """
    here, other = reassign_devices(config, find)
    if other:
        return Repetition(here, doubt=other)
    # The stored configuration is compared with earlier configurations, so this machine's GPUs are set afterwards.
    repetition = repetition_of(config, run)
    cluster = replace(repetition.config.cluster, gpus=here.cluster.gpus)
    return replace(repetition, config=replace(repetition.config, cluster=cluster))


def repetition_of(config: Config, run: StoredRun) -> Repetition:
    """Return the plan to repeat a run with ``config``, its last configuration. A record of racing workers is replayed.

    Raises ConfigError or SecurityError if the configuration of an earlier start cannot be read.
    """
    changes = list(configuration_changes(earlier_configurations(run.path), config))
    if changes:
        changed = f"the run was started {run.starts} times and its configuration changed: {'; '.join(changes)}"
        return Repetition(config, doubt=f"{changed}. All steps are repeated with the last configuration")
    race = config.parallelism.race
    if race is None or race.decided:
        return Repetition(config)
    if race.decisions is None and run.starts > 1:
        return Repetition(
            config,
            doubt=f"the result depends on the order of {race.racers}, which has a separate record for each of the "
            f"{run.starts} starts of the run",
        )
    record = run.path / (_ENDINGS if race.decisions is None else f"{race.decisions}.jsonl")
    if not record.is_file():
        return Repetition(
            config, doubt=f"the result depends on the order of {race.racers}, and {record} does not exist"
        )
    config = replace(config, parallelism=config.parallelism.replaying(str(record)))
    if race.decisions is None:
        # The record holds the order in which all clients ended, so one process replays it without emulated delays.
        config = replace(config, cluster=for_one_process(config.cluster))
    return Repetition(config, record)


SAME, OTHER = 0, 1  # exit codes. SAME: the weights are the same. OTHER: the weights differ or cannot be compared.
_EXAMPLE = """\
The run starts from step 0 with its stored configuration, in a new directory. If the result depends on the order of the
workers, the recorded order is replayed. Exit code 0: weights_sha256 is the same; 1: it differs or cannot be compared.

examples:
  runner rerun outputs/2026-01-31/12-00-00
  runner rerun 4f1c --output again"""


def main(arguments: Sequence[str]) -> int:
    """Repeat a stored run, print its results and the verdict; return :data:`SAME` or :data:`OTHER`."""
    parser = verb_parser("rerun", "Train a stored run again and compare the weights.", _EXAMPLE)
    parser.add_argument("run", metavar="RUN", help="directory or run id")
    parser.add_argument("--output", type=Path, metavar="DIR", help="directory of the new run (default: below outputs)")
    options = parser.parse_args(arguments)
    first = named_run(options.run)
    require_session_classes(first.path)
    output = (options.output or Path("outputs", f"{datetime.now():%Y-%m-%d/%H-%M-%S}-rerun")).absolute()
    repetition = repetition_here(load_stored(first.config_yaml), first)
    for note in _notes(first, repetition):
        print(note, file=sys.stderr, flush=True)
    from runner.training.run import run

    overrides = [] if first.summary is None else first.summary.overrides
    summary = run(repetition.config, output, overrides=overrides, repeats=first.run_id)
    print(results_table(summary), end="\n\n")
    second = read_run(output)
    print(verdict(first, second, repetition.doubt))
    return SAME if _same(first, second) else OTHER


def _notes(first: StoredRun, repetition: Repetition) -> Iterator[str]:
    if _weights(first) is None:
        status = "is active or was killed" if first.summary is None else f"was {first.summary.status}"
        yield f"run {first.run_id} {status}, so it has no weights_sha256 for the comparison"
    if repetition.replayed is not None:
        yield f"the order of the workers is replayed from {repetition.replayed}"
    if repetition.doubt:
        yield f"the same weights are not guaranteed: {repetition.doubt}"
    plugins = read_plugins(first.path)
    yield from changed_plugins(plugins or {})
    yield from plugin_notes(plugins)
    started = None if first.summary is None else first.summary.provenance
    if started is not None and started.working_directory != str(Path.cwd()):
        yield f"the run was started in {started.working_directory}; its relative paths now refer to {Path.cwd()}"


def verdict(first: StoredRun, second: StoredRun, doubt: str) -> str:
    """Return a text on whether two runs have the same weights and, if not, on the possible reasons."""
    if _same(first, second):
        return f"the same weights as run {first.run_id}: weights_sha256 {_weights(second)}"
    before = _weights(first)
    if before is None:
        return f"not compared: run {first.run_id} has no weights_sha256"
    lines = [f"the weights differ from those of run {first.run_id}: its weights_sha256 is {before}"]
    lines += [f"the same weights were not guaranteed: {doubt}"] if doubt else []
    rows = difference_rows(differences_of_origin(first, second))
    if rows:
        lines.append(text_table(("different", first.run_id, second.run_id), rows))
    else:
        lines.append("the recorded code, versions and machine are the same")
    return "\n".join(lines)


def _same(first: StoredRun, second: StoredRun) -> bool:
    return _weights(second) is not None and _weights(first) == _weights(second)


def _weights(run: StoredRun) -> str | None:
    return None if run.summary is None else run.summary.weights_sha256
