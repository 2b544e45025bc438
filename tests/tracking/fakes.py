"""A tracking store in memory that fails on request."""

import threading
from collections.abc import Sequence

from runner.tracking.records import Record
from runner.tracking.writer import Pace, StoreUnavailableError

FAST = Pace(flush_s=0.001, first_retry_s=0.001, last_retry_s=0.005, final_tries=10)


class FakeStore:
    """Keeps the written records. The first ``open_failures`` opens, ``write_failures`` writes fail; -1: all."""

    def __init__(self, open_failures: int = 0, write_failures: int = 0) -> None:
        self.written: list[Record] = []
        self.failed = threading.Event()
        self.opens = 0
        self._open_failures = open_failures
        self._write_failures = write_failures

    def open(self) -> None:
        self.opens += 1
        if self._open_failures:
            self._open_failures -= 1
            self._fail("no route to store")

    def write(self, records: Sequence[Record]) -> None:
        if self._write_failures:
            self._write_failures -= 1
            self._fail("database is locked")
        self.written += records

    def _fail(self, why: str) -> None:
        self.failed.set()
        raise StoreUnavailableError(f"tracking store fake: {why}")


class GatedStore(FakeStore):
    """Blocks in ``write`` until ``gate`` is set: a store that hangs."""

    def __init__(self, write_failures: int = 0) -> None:
        super().__init__(write_failures=write_failures)
        self.gate = threading.Event()
        self.entered = threading.Event()

    def write(self, records: Sequence[Record]) -> None:
        self.entered.set()
        self.gate.wait()
        super().write(records)
