"""The thread between a training loop and a store that can be slow, unavailable or broken.

The caller puts records into a queue in memory, from which the thread writes them to the store. If the queue is full or
the store fails, the caller's records go to the spool file instead. Once the store answers, the thread writes the
records of the spool, and the queue is used again. The order is kept: no record enters the queue while the spool has a
record, and after a failure the records in the queue go to the front of the spool.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runner.tracking.records import Record
from runner.tracking.spool import Spool

_log = logging.getLogger(__name__)

BATCH_RECORDS = 500  # largest number of records in one write


class StoreUnavailableError(Exception):
    """The store cannot accept records now; the records are kept for another attempt."""


class Store(Protocol):
    """The destination of records, called by one thread. Both methods raise StoreUnavailableError if they fail."""

    def open(self) -> None:
        """Open the store and create or find the run; called again until it succeeds."""

    def write(self, records: Sequence[Record]) -> None:
        """Write records in order. Do not duplicate records that are passed again after a failure."""


@dataclass(frozen=True)
class Pace:
    """The times between attempts of the writer, in seconds, and the number of final attempts.

    flush_s: time between writes. first_retry_s: wait after a failure, doubled after each further failure up to
    last_retry_s. final_tries: maximum number of attempts to write the pending records at the end of a run.
    """

    flush_s: float = 1.0
    first_retry_s: float = 0.5
    last_retry_s: float = 30.0
    final_tries: int = 3


class BackgroundWriter:
    """A queue that accepts records in microseconds and writes them to the store, in order, on a separate thread."""

    def __init__(self, store: Store, spool: Spool, *, queue_size: int, pace: Pace | None = None) -> None:
        self._store = store
        self._spool = spool
        self._queue_size = queue_size
        self._pace = pace or Pace()
        # Guards the spool and the next four attributes.
        self._lock = threading.Lock()
        self._queue: deque[Record] = deque()
        self._in_flight: list[Record] = []
        self._lost = 0
        self._abandoned = False
        self._stop = threading.Event()
        self._give_up = threading.Event()
        self._opened = False
        self._failures = 0
        self._retry_at_s = 0.0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tracking-writer", daemon=True)

    def start(self) -> None:
        """Start the thread, which also opens the store."""
        self._thread.start()

    def put(self, record: Record) -> None:
        """Accept a record. Never waits for the store."""
        with self._lock:
            if len(self._queue) < self._queue_size and not self._spool.pending:
                self._queue.append(record)
            else:
                self._to_spool(self._spool.append, [record])

    def finish(self, timeout_s: float) -> None:
        """Write the pending records and end the thread; records not written within ``timeout_s`` are spooled."""
        self._stop.set()
        self._thread.join(timeout_s)
        with self._lock:
            self._abandoned = self._thread.is_alive()
        self._give_up.set()
        self._spool_unwritten()
        self._report()

    def _run(self) -> None:
        try:
            self._try_to_write()
            while not self._stop.wait(self._pace.flush_s):
                if time.monotonic() >= self._retry_at_s:
                    self._try_to_write()
            tries = 1
            while not self._try_to_write() and tries < self._pace.final_tries:
                self._give_up.wait(self._pace.first_retry_s * tries)
                tries += 1
        finally:
            self._spool_unwritten()

    def _try_to_write(self) -> bool:
        try:
            # If ``finish`` has timed out, a ``Replay`` may begin. The lock prevents simultaneous writes.
            with self._spool.lock():
                if not self._opened and not self._abandoned:
                    self._store.open()
                    self._opened = True
                while self._write_next():
                    pass
        except (StoreUnavailableError, OSError) as error:
            self._fall_back(error)
            return False
        if self._failures:
            _log.info("the tracking store answers again; the waiting records have been written")
        self._failures, self._error = 0, None
        return True

    def _write_next(self) -> bool:
        """Write the oldest records; return whether there were any."""
        with self._lock:
            if self._abandoned:
                return False
            self._in_flight = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_RECORDS))]
        if self._in_flight:
            self._store.write(self._in_flight)
            with self._lock:
                self._in_flight = []
            return True
        if not self._spool.pending:
            return False
        records, position = self._spool.head(BATCH_RECORDS)
        self._store.write(records)
        with self._lock:
            if not self._abandoned:
                self._spool.advance(position)
        return True

    def _fall_back(self, error: Exception) -> None:
        self._spool_unwritten()
        if self._failures == 0:
            _log.warning("%s; tracking records go to %s until the store answers", error, self._spool.path)
        doubled = 2.0 ** min(self._failures, 100)  # a float holds no power of 2 above 2 ** 1023
        pause = min(self._pace.first_retry_s * doubled, self._pace.last_retry_s)
        self._failures, self._error = self._failures + 1, error
        self._retry_at_s = time.monotonic() + pause

    def _spool_unwritten(self) -> None:
        """Move the records in memory to the front of the spool."""
        with self._lock:
            records = [*self._in_flight, *self._queue]
            self._in_flight = []
            self._queue.clear()
            if records:
                self._to_spool(self._spool.prepend, records)

    def _to_spool(self, add: Callable[[Sequence[Record]], None], records: Sequence[Record]) -> None:
        """Spool records; if the file cannot be written, the records are lost and training continues."""
        try:
            add(records)
        except OSError as error:
            if self._lost == 0:
                _log.error("%s: %s; tracking records are being lost", self._spool.path, error)
            self._lost += len(records)

    def _report(self) -> None:
        if self._spool.pending:
            no_answer = "the store did not answer in time" if self._abandoned else "the writer failed"
            _log.warning(
                "the tracking record of this run is incomplete (%s): the missing part is stored in %s "
                "and is written by `runner sync %s`, at the end of the sweep, or when the run is resumed",
                *(self._error or no_answer, self._spool.path, self._spool.path.parent),
            )
        if self._lost:
            _log.error("%d tracking records were lost", self._lost)
