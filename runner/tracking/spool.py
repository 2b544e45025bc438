"""A queue of records in a file beside the run: what the store could not take, in order, across processes."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from runner.tracking.records import Record, from_line, to_line

_log = logging.getLogger(__name__)
_LOCK_LOOK_S = 0.05


class Spool:
    """First in, first out. The file exists only while records wait in it.

    Not locked: the owner serialises all calls, except that ``head`` may run while another thread appends.
    """

    def __init__(self, path: Path) -> None:
        """Continue the spool a former process left at ``path``, less a last line that a kill cut short."""
        self.path = path
        self._start = 0
        self._end = _drop_incomplete_line(path) if path.exists() else 0
        if self._end == 0:
            path.unlink(missing_ok=True)

    @property
    def pending(self) -> bool:
        """Whether records wait."""
        return self._end > self._start

    @contextmanager
    def lock(self, wait_s: float | None = None) -> Iterator[None]:
        """Hold the way from the spool to the store, after its present holder in whatever thread or process.

        wait_s: longest wait for that holder, without end by default; then TimeoutError is raised.
        """
        with ExitStack() as stack:
            held = True
            # Where there can be no lock there can be no spool, for which another writer would come.
            with suppress(OSError):
                file = stack.enter_context(self.path.with_name(f".{self.path.name}.lock").open("a"))
                held = _held(file, wait_s)
            if not held:
                raise TimeoutError(f"another writer has been at {self.path.name} for {wait_s:g} s")
            yield

    def append(self, records: Iterable[Record]) -> None:
        """Add records at the back; raises OSError, and then holds none of them."""
        data = "".join(map(to_line, records)).encode()
        with self.path.open("ab") as file:
            file.truncate(self._end)
            file.write(data)
        self._end += len(data)

    def prepend(self, records: Iterable[Record]) -> None:
        """Add records at the front; raises OSError and then changes nothing."""
        self._rewrite("".join(map(to_line, records)).encode() + self._waiting())

    def keep(self, wanted: Callable[[Record], bool]) -> None:
        """Drop the records that are not wanted."""
        if self.pending:
            records, _ = self.head(limit=None)
            self._rewrite("".join(to_line(record) for record in records if wanted(record)).encode())

    def head(self, limit: int | None) -> tuple[list[Record], int]:
        """The first ``limit`` records (None: all), and the position behind them for ``advance``."""
        end, position = self._end, self._start
        records: list[Record] = []
        with self.path.open("rb") as file:
            file.seek(position)
            while position < end and (limit is None or len(records) < limit):
                line = file.readline()
                if not line:
                    raise OSError(f"{self.path} ends at byte {position} instead of {end}: changed from outside")
                position += len(line)
                try:
                    records.append(from_line(line.decode()))
                except ValueError as error:
                    _log.warning("%s: line dropped: %s", self.path, error)
        return records, position

    def advance(self, position: int) -> None:
        """Forget the records before ``position``; removes the file when none is left."""
        self._start = position
        if not self.pending:
            self.path.unlink()
            self._start = self._end = 0

    def _waiting(self) -> bytes:
        if not self.pending:
            return b""
        with self.path.open("rb") as file:
            file.seek(self._start)
            return file.read(self._end - self._start)

    def _rewrite(self, data: bytes) -> None:
        fresh = self.path.with_name(self.path.name + ".tmp")
        fresh.write_bytes(data)
        fresh.replace(self.path)
        self._start, self._end = 0, len(data)
        if not data:
            self.path.unlink()


def _held(file: IO[str], wait_s: float | None) -> bool:
    """Lock an open file; return whether that was done in time."""
    if wait_s is None:
        fcntl.flock(file, fcntl.LOCK_EX)
        return True
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
        # The system has no lock that waits for a while.
        time.sleep(_LOCK_LOOK_S)


def _drop_incomplete_line(path: Path) -> int:
    """Cut the file behind its last newline and return its length in bytes."""
    data = path.read_bytes()
    length = data.rfind(b"\n") + 1
    if length < len(data):
        os.truncate(path, length)
    return length
