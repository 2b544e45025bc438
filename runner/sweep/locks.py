"""One process at a time: for a whole sweep, where a second one is refused, for a job, where it waits, and for a place
among the jobs that run at the same time, where it takes the next.

The operating system drops the lock of a process that dies, so none is ever stale. A job outlives the sweep that
started it when only the sweep is killed; whoever takes the sweep up again then waits for it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import DirectoryInUseError

SWEEP_LOCK = "sweep.lock"
JOB_LOCK = "job.lock"


@contextmanager
def sweep_lock(directory: Path) -> Iterator[None]:
    """Hold the sweep in ``directory``; raises DirectoryInUseError when another process does."""
    with _open(directory / SWEEP_LOCK) as lock:
        if not _taken(lock):
            raise DirectoryInUseError(
                f"the sweep in {directory} is running: wait for it, or stop it; `runner sweep status "
                f"{shlex.quote(str(directory))}` shows how far it is"
            )
        yield


@contextmanager
def job_lock(directory: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the job in ``directory``, after its present holder if there is one; ``on_wait`` is called before waiting."""
    with _open(directory / JOB_LOCK) as lock:
        if not _taken(lock):
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def place_lock(directory: Path, wanted: int = 0) -> Iterator[int]:
    """Hold a place among the jobs of a sweep that run now, ``wanted`` or else the first that is free, and say which."""
    for place in itertools.chain([wanted], itertools.count()):
        with _open(directory / f".place-{place}.lock") as lock:
            if _taken(lock):
                yield place
                return


def sweep_is_running(directory: Path) -> bool:
    """Whether a process holds the sweep in ``directory`` now."""
    return _held(directory / SWEEP_LOCK)


def job_is_running(directory: Path) -> bool:
    """Whether a process holds the job in ``directory`` now."""
    return _held(directory / JOB_LOCK)


def _held(path: Path) -> bool:
    if not path.exists():
        return False
    with _open(path) as lock:
        return not _taken(lock)


@contextmanager
def _open(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
