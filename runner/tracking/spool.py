"""The spool: a queue, in a file of the run directory, of tracking records that are not yet in the store."""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from runner.system.files import take_lock
from runner.tracking.records import Record, from_line, to_line

_log = logging.getLogger(__name__)
SPOOL_FILE = "tracking-spool.jsonl"  # the name of a spool in the directory of a run
_LOCK_LOOK_S = 0.05


class Spool:
    """A first-in, first-out queue of records in a file. The file exists only while the queue is not empty.

    Not thread-safe: the owner serialises all calls, except that ``head`` may run while another thread appends.
    """

    def __init__(self, path: Path) -> None:
        """Open the file ``path`` with the records of an earlier process, if any; remove an incomplete last line."""
        self.path = path
        self._start = 0
        self._end = _drop_incomplete_line(path) if path.exists() else 0
        if self._end == 0:
            path.unlink(missing_ok=True)

    @property
    def pending(self) -> bool:
        return self._end > self._start

    @contextmanager
    def lock(self, wait_s: float | None = None) -> Iterator[None]:
        """Hold the lock that allows only one thread among all processes to write the run's records to the store.

        wait_s: longest wait for the lock in seconds, unlimited by default. Raises TimeoutError after that time.
        """
        with ExitStack() as stack:
            held = True
            # If the lock file cannot be created, no spool file can be created either, so there is no other writer.
            with suppress(OSError):
                file = stack.enter_context(self.path.with_name(f".{self.path.name}.lock").open("a"))
                held = _held(file, wait_s)
            if not held:
                raise TimeoutError(f"another process has locked {self.path.name} for {wait_s:g} s")
            yield

    def append(self, records: Iterable[Record]) -> None:
        """Add records at the end; if this raises OSError, no record is added."""
        data = "".join(map(to_line, records)).encode()
        with self.path.open("ab") as file:
            file.truncate(self._end)
            file.write(data)
        self._end += len(data)

    def prepend(self, records: Iterable[Record]) -> None:
        """Add records at the front; if this raises OSError, nothing changes."""
        waiting = self.path.read_bytes()[self._start : self._end] if self.pending else b""
        self._rewrite("".join(map(to_line, records)).encode() + waiting)

    def keep(self, wanted: Callable[[Record], bool]) -> None:
        """Drop the records for which ``wanted`` returns False."""
        if self.pending:
            records, _ = self.head(limit=None)
            self._rewrite("".join(to_line(record) for record in records if wanted(record)).encode())

    def head(self, limit: int | None) -> tuple[list[Record], int]:
        """Return the first ``limit`` records (None: all), and the position after them, to pass to ``advance``."""
        end, position = self._end, self._start
        records: list[Record] = []
        with self.path.open("rb") as file:
            file.seek(position)
            while position < end and (limit is None or len(records) < limit):
                line = file.readline()
                if not line:
                    raise OSError(f"{self.path} ends at byte {position} instead of {end}: another process changed it")
                position += len(line)
                try:
                    records.append(from_line(line.decode()))
                except ValueError as error:
                    _log.warning("%s: line dropped: %s", self.path, error)
        return records, position

    def advance(self, position: int) -> None:
        """Drop the records before ``position``; remove the file if no record is left."""
        self._start = position
        if not self.pending:
            self.path.unlink()
            self._start = self._end = 0

    def _rewrite(self, data: bytes) -> None:
        fresh = self.path.with_name(self.path.name + ".tmp")
        fresh.write_bytes(data)
        fresh.replace(self.path)
        self._start, self._end = 0, len(data)
        if not data:
            self.path.unlink()


def _held(file: IO[str], wait_s: float | None) -> bool:
    """Lock an open file; return whether it was locked in time."""
    if wait_s is None:
        fcntl.flock(file, fcntl.LOCK_EX)
        return True
    deadline_s = time.monotonic() + wait_s
    while not take_lock(file):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_LOCK_LOOK_S)  # flock has no timeout
    return True


def _drop_incomplete_line(path: Path) -> int:
    """Cut the file after its last newline and return its length in bytes."""
    data = path.read_bytes()
    length = data.rfind(b"\n") + 1
    if length < len(data):
        os.truncate(path, length)
    return length
