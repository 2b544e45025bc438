"""Records that a run left in its spool when it ended, brought to the store by another process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from runner.tracking.base import RunInfo
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.mlflow_tracker import SPOOL_FILE
from runner.tracking.origin import Origin
from runner.tracking.records import End, Metrics
from runner.tracking.spool import Spool
from runner.tracking.writer import BATCH_RECORDS, Store, StoreUnavailableError

PATIENCE_S = 10.0
KILLED_STATUS = "interrupted"
"""Of a run that was killed: MLflow calls it KILLED."""


class Replay:
    """Brings over what runs left, one run after the other. A store that kept it waiting is not asked again."""

    def __init__(
        self, store: Callable[[str, str, RunInfo, int], Store] = MlflowStore, patience_s: float = PATIENCE_S
    ) -> None:
        """store: makes one of address, experiment, run and the time the run was started at.

        patience_s: for the lock of a spool, and what a store that fails to write may take to be asked for another run.
        """
        self._store = store
        self._patience_s = patience_s
        self._away: dict[str, str] = {}

    def run(self, run_dir: Path, uri: str | None, end: End | None) -> int:
        """Write what waits in the directory of a run, in order, and return how many records that was.

        uri: the run's setting ``tracking.uri``. end: of a run that did not come to record its own; None where nothing
        tells of one: it was killed, and is recorded as interrupted when it was last heard of. The caller sees to it
        that the run does not start meanwhile. Raises StoreUnavailableError or OSError, and what was not written waits
        on; ValueError where it cannot be told how the run is recorded.
        """
        origin = Origin.read(run_dir)
        if origin.store in self._away:
            raise StoreUnavailableError(self._away[origin.store])
        store = self._store(origin.address(uri, Path.cwd()), origin.experiment, origin.run(run_dir), origin.started_ms)
        spool = Spool(run_dir / SPOOL_FILE)
        # To open a record takes its end from it, which only what waits would put back.
        if not spool.pending:
            return 0
        # Where the run was in this process, the thread of its writer may still be at it.
        try:
            with spool.lock(self._patience_s):
                self._open(store, origin.store)
                _add_end(spool, end)
                return self._write(store, origin.store, spool)
        except TimeoutError as error:
            # That writer is waiting for the store.
            self._away[origin.store] = str(error)
            raise

    def _open(self, store: Store, address: str) -> None:
        try:
            store.open()
        except StoreUnavailableError as error:
            self._away[address] = str(error)
            raise

    def _write(self, store: Store, address: str, spool: Spool) -> int:
        written = 0
        while spool.pending:
            records, position = spool.head(BATCH_RECORDS)
            began_s = time.monotonic()
            try:
                store.write(records)
            except StoreUnavailableError as error:
                # A store that refuses at once may do so for this run alone, and keeps nobody waiting.
                if time.monotonic() - began_s >= self._patience_s:
                    self._away[address] = str(error)
                raise
            spool.advance(position)
            written += len(records)
        return written


def _add_end(spool: Spool, end: End | None) -> None:
    """Have what waits end in the end of the run: were it written apart, a failure in between would lose it."""
    records, _ = spool.head(limit=None)
    if not any(isinstance(record, End) for record in records):
        heard_ms = max((record.time_ms for record in records if isinstance(record, Metrics)), default=_now_ms())
        spool.append([end or End(KILLED_STATUS, heard_ms)])


def _now_ms() -> int:
    return round(time.time() * 1000)
