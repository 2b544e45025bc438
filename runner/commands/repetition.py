"""How a stored run is made again: which configuration comes to its bits, and whether any does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from runner.config.devices import Look, retake_devices
from runner.config.outcome import changes_on_the_way
from runner.config.schema import Config, StragglersConfig
from runner.kernels.gpu.discovery import discover
from runner.records.stored_run import StoredRun

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
