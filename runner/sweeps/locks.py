"""Locks of a sweep, of its jobs, and of places, the numbers that distinguish jobs that run at the same time.

If a lock is held, a second process gets an error (sweep), waits (job) or tries the next place. The operating system
releases the locks of a process that dies. If the process of the sweep is killed, its jobs on this machine save a
checkpoint and end; jobs on other machines continue, and a process that resumes the sweep waits for them.
"""

import fcntl
import itertools
import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import DirectoryInUseError
from runner.system.files import create_directory, take_lock, writing

SWEEP_LOCK = "sweep.lock"
JOB_LOCK = "job.lock"
TABLE_LOCK = ".lock"


@contextmanager
def sweep_lock(directory: Path) -> Iterator[None]:
    """Hold the lock of a sweep within the block; raises DirectoryInUseError if another process holds it."""
    with _open(directory / SWEEP_LOCK) as lock:
        if not take_lock(lock):
            raise DirectoryInUseError(
                f"the sweep in {directory} is running: wait for it, or stop it; `runner sweep status "
                f"{shlex.quote(str(directory))}` shows its progress"
            )
        yield


@contextmanager
def table_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the results of a table within the block; raises DirectoryInUseError if it is held.

    Raises ResourceError if the folder cannot be written.
    """
    advice = "choose another folder with --results DIR"
    with writing(f"into {folder}", advice):
        create_directory(folder)
    with _open(folder / TABLE_LOCK, advice) as lock:
        if not take_lock(lock):
            raise DirectoryInUseError(f"another process computes the results in {folder}: wait for it, or stop it")
        yield


@contextmanager
def job_lock(directory: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a job within the block. If another process holds the lock, call ``on_wait``, then wait."""
    with _open(directory / JOB_LOCK) as lock:
        if not take_lock(lock):
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def place_lock(directory: Path, wanted: int = 0) -> Iterator[int]:
    """Lock place ``wanted`` of a sweep, or else the first free place, within the block; yield the place's number."""
    for place in itertools.chain([wanted], itertools.count()):
        with _open(directory / f".place-{place}.lock") as lock:
            if take_lock(lock):
                yield place
                return


def stop_at_end_of_sweep(directory: Path) -> None:
    """Send SIGTERM to this process as soon as the process of the sweep ends or is killed, which releases its lock."""

    def wait() -> None:
        with _open(directory / SWEEP_LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="end-of-sweep", daemon=True).start()


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock of a sweep or of a job. path: the file of the lock.

    The lock is tested with a shared lock, so that several processes can test it at the same time.
    """
    if not path.exists():
        return False
    with _open(path) as lock:
        return not take_lock(lock, shared=True)


@contextmanager
def _open(path: Path, advice: str = "expected a sweep that your account started") -> Iterator[int]:
    """Open the file of a lock, or create it, until the block ends. Raises ResourceError if that fails."""
    with writing(str(path), advice):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
