"""One job of a planned sweep: from its frozen configuration, or from an interrupted run, to its outcome."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.config.configuration import fix_machine_values, load_stored
from runner.config.devices import ALL_GPUS, GpuShare, Look
from runner.config.schema import Config, LocalCluster
from runner.engine.graph.device import GPU
from runner.errors import Interrupted, RunnerError
from runner.kernels.gpu.discovery import discover
from runner.records.run_directory import CONFIG_FILE, holds_run
from runner.sweep.locks import job_lock, place_lock
from runner.sweep.outcome import FINISHED, forget, note_failure, recorded
from runner.sweep.plan import FROZEN_FILE, PlannedJob
from runner.system.console import print_error
from runner.system.machine import usable_cores


@contextmanager
def gpu_share(sweep_dir: Path, at_once: int, look: Look, *, had: Sequence[int] = ()) -> Iterator[GpuShare]:
    """Hold a share of the GPUs, while others of the ``at_once`` jobs hold theirs.

    had: GPUs of a run that goes on with them; the place they belong to is taken if it is free, so that no other job
    is dealt them.
    """
    if at_once == 1:
        yield ALL_GPUS
        return
    wanted = _place_of(had, at_once, look) if had else 0
    with place_lock(sweep_dir, wanted) as place:
        yield GpuShare(place, at_once)


def dealt_text(asked: LocalCluster, taken: LocalCluster, share: GpuShare, look: Look) -> str:
    """What a job was dealt, in words; "" where it has no GPU, named its GPUs or has the machine to itself."""
    if share == ALL_GPUS or asked.gpus is not None or taken.device_taken != GPU:
        return ""
    return share.text(look().gpus)


def _place_of(had: Sequence[int], at_once: int, look: Look) -> int:
    """The first place with such a GPU, 0 where there is none."""
    gpus = look().gpus
    shares = (GpuShare(place, at_once).of(gpus) for place in range(at_once))
    return next((place for place, own in enumerate(shares) if {gpu.number for gpu in own} & set(had)), 0)


@dataclass(frozen=True)
class Work:
    """What there is to train.

    resume: a run lies in ``directory`` and goes on from its newest checkpoint. gpus: that it was dealt, in words, ""
    where it was not dealt any.
    """

    config: Config
    directory: Path
    job: PlannedJob
    resume: bool
    gpus: str = ""


def run_frozen_job(
    job: PlannedJob,
    sweep_dir: Path,
    at_once: int,
    train: Callable[[Work], object],
    *,
    debug: bool = False,
    look: Look = discover,
) -> None:
    """Train a job unless it is finished, and leave its outcome in its directory.

    at_once: jobs that share the machine, for what its configuration leaves open. Where another process still runs it,
    that one is waited for. A RunnerError is told and noted, not raised: it is no concern of the other jobs. An
    interruption is raised as Interrupted, a defect as it is, both noted. look: finds the GPUs.
    """
    directory = sweep_dir / job.directory
    with job_lock(directory, lambda: _tell(f"{job.label}: another process still runs it; waiting for its end")):
        if recorded(directory)[0] == FINISHED:
            return
        _tell(job.label)
        forget(directory)
        try:
            with _prepared(job, sweep_dir, at_once, look) as work:
                train(work)
        except Exception as error:
            note_failure(error, directory, job.overrides)
            if isinstance(error, Interrupted):
                raise
            print_error(error, what=job.label, debug=debug)
            if not isinstance(error, RunnerError):
                raise


@contextmanager
def _prepared(job: PlannedJob, sweep_dir: Path, at_once: int, look: Look) -> Iterator[Work]:
    """What there is to train, with a share of the machine's GPUs that is the job's own meanwhile.

    A run that was begun goes on with the machine values it began with: it then comes to the same bits.
    """
    directory = sweep_dir / job.directory
    if holds_run(directory):
        config = load_stored(directory / CONFIG_FILE)
        with gpu_share(sweep_dir, at_once, look, had=config.cluster.gpus or ()):
            yield Work(config, directory, job, resume=True)
        return
    frozen = load_stored(directory / FROZEN_FILE)
    with gpu_share(sweep_dir, at_once, look) as share:
        config = fix_machine_values(frozen, max(1, usable_cores() // at_once), look, share)
        dealt = dealt_text(frozen.cluster, config.cluster, share, look)
        yield Work(config, directory, job, resume=False, gpus=dealt)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
