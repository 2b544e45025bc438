"""How a stored run is made again: which configuration comes to its bits, and whether any does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from runner.config.devices import Look, retake_devices
from runner.config.earlier import changes_on_the_way
from runner.config.schema import Config, StragglersConfig
from runner.kernels.gpu.discovery import discover
from runner.records.stored_run import StoredRun

_ENDINGS = "endings-1.jsonl"
_CONTRIBUTORS = "contributors.jsonl"


@dataclass(frozen=True)
class Repetition:
    """config: to train. replayed: the record of what the configuration does not decide, None where it decides all or
    where there is none. doubt: why the same weights are not promised, "" where they are."""

    config: Config
    replayed: Path | None = None
    doubt: str = ""


def repetition_here(config: Config, run: StoredRun, look: Look = discover) -> Repetition:
    """How to repeat ``run`` on the devices that there are: where they are others than it had, no record is replayed.

    Raises ResourceError for a card that was asked for and is not there, and what :func:`repetition_of` raises.
    """
    here, other = retake_devices(config, look)
    if other:
        return Repetition(here, doubt=other)
    # By what is stored, as the record is of that; which cards of this machine compute it is no part of the record.
    repetition = repetition_of(config, run)
    cluster = replace(repetition.config.cluster, cards=here.cluster.cards)
    return replace(repetition, config=replace(repetition.config, cluster=cluster))


def repetition_of(config: Config, run: StoredRun) -> Repetition:
    """How to repeat ``run``, whose last configuration is ``config``: by its record where its workers raced.

    Raises ConfigError and SecurityError where a configuration by which earlier starts went cannot be read.
    """
    changes = list(changes_on_the_way(run.earlier_configurations, config))
    if changes:
        said = f"it was started {run.starts} times and changed on the way: {'; '.join(changes)}"
        return Repetition(config, doubt=f"{said}. All its steps are made as the last ones were to be")
    parallelism = config.parallelism
    if getattr(parallelism, "replay", None) is not None:
        return Repetition(config)
    if getattr(parallelism, "backup_workers", 0):
        return _by_contributors(config, run)
    if parallelism.name == "async_data" and not parallelism.virtual_time:
        return _by_endings(config, run)
    return Repetition(config)


def _by_contributors(config: Config, run: StoredRun) -> Repetition:
    record = run.path / _CONTRIBUTORS
    if not record.is_file():
        return Repetition(config, doubt=f"backup workers raced, and {record} is not there")
    return Repetition(replace(config, parallelism=replace(config.parallelism, replay=str(record))), record)


def _by_endings(config: Config, run: StoredRun) -> Repetition:
    record = run.path / _ENDINGS
    if run.starts > 1:
        return Repetition(
            config, doubt=f"its replicas raced, and it was started {run.starts} times: its records are of pieces"
        )
    if not record.is_file():
        return Repetition(config, doubt=f"its replicas raced, and {record} is not there")
    # One process has no wire to wait for, and nobody in it is late: the record says in which order all came.
    cluster = replace(config.cluster, one_process=None, emulate=False, stragglers=StragglersConfig())
    return Repetition(
        replace(config, cluster=cluster, parallelism=replace(config.parallelism, replay=str(record))), record
    )
