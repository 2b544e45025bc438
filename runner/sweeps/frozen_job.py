"""Run one job of a planned sweep: start it from its ``frozen.yaml``, or resume its interrupted run."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.config.configuration import fix_machine_values, load_stored
from runner.config.devices import ALL_GPUS, FindGpus, GpuShare
from runner.config.schema import Config
from runner.engine.graph.device import GPU
from runner.errors import Interrupted, RunnerError
from runner.kernels.gpu.discovery import discover
from runner.records.run_directory import CONFIG_FILE, holds_run
from runner.sweeps.locks import job_lock, place_lock
from runner.sweeps.outcome import ENDED, record_failure, recorded, remove_outcome
from runner.sweeps.plan import FROZEN_FILE, PlannedJob
from runner.system.console import print_error
from runner.system.machine import usable_cores


@contextmanager
def gpu_share(sweep_dir: Path, at_once: int, find: FindGpus, *, earlier: Sequence[int] = ()) -> Iterator[GpuShare]:
    """Yield the GPUs for one of ``at_once`` simultaneous jobs; a lock reserves this share until the block ends.

    earlier: GPUs of a run that is resumed. A share with one of these GPUs is chosen unless another job reserved it.
    """
    if at_once == 1:
        yield ALL_GPUS
        return
    gpus = find().gpus if earlier else ()
    shares = [{gpu.number for gpu in GpuShare(place, at_once).of(gpus)} for place in range(at_once)]
    wanted = next((place for place, numbers in enumerate(shares) if numbers & set(earlier)), 0)
    with place_lock(sweep_dir, wanted) as place:
        yield GpuShare(place, at_once)


@dataclass(frozen=True)
class Work:
    """A job to train.

    resume: whether to continue the run in ``directory`` from its newest checkpoint. gpus: a description of the GPUs
    that this process assigned to the job, for the log; "" if this process assigned none.
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
    find: FindGpus = discover,
) -> None:
    """Train a job unless it is finished, and record its outcome in its directory.

    If another process still runs the job, wait for its end. A RunnerError other than Interrupted is printed and
    recorded but not raised, so that other jobs run. Every other exception is recorded and raised. at_once: number of
    jobs that share the machine. find: function that finds the GPUs of this machine.
    """
    directory = sweep_dir / job.directory
    waiting = f"{job.label}: another process still runs this job; waiting for its end"
    with job_lock(directory, lambda: print(waiting, file=sys.stderr, flush=True)):
        if recorded(directory)[0] in ENDED:
            return
        print(job.label, file=sys.stderr, flush=True)
        remove_outcome(directory)
        try:
            with _prepared(job, sweep_dir, at_once, find) as work:
                train(work)
        except Exception as error:
            record_failure(error, directory, job.overrides)
            if isinstance(error, Interrupted):
                raise
            print_error(error, what=job.label, debug=debug)
            if not isinstance(error, RunnerError):
                raise


@contextmanager
def _prepared(job: PlannedJob, sweep_dir: Path, at_once: int, find: FindGpus) -> Iterator[Work]:
    """Yield the job to train. The job's share of the GPUs is reserved until the block ends.

    A resumed run keeps its number of threads and its devices, so that its results equal those of an uninterrupted run.
    """
    directory = sweep_dir / job.directory
    if holds_run(directory):
        config = load_stored(directory / CONFIG_FILE)
        with gpu_share(sweep_dir, at_once, find, earlier=config.cluster.gpus or ()):
            yield Work(config, directory, job, resume=True)
        return
    frozen = load_stored(directory / FROZEN_FILE)
    with gpu_share(sweep_dir, at_once, find) as share:
        config = fix_machine_values(frozen, max(1, usable_cores() // at_once), find, share)
        assigned = share != ALL_GPUS and frozen.cluster.gpus is None and config.cluster.device_taken == GPU
        yield Work(config, directory, job, resume=False, gpus=share.text(find().gpus) if assigned else "")
