"""Write to the tracking store the records that a run left in its spool, after the run has ended."""

import time
from collections.abc import Callable
from pathlib import Path

from runner.tracking.base import RunInfo
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.origin import Origin
from runner.tracking.records import End, Metrics, now_ms
from runner.tracking.spool import SPOOL_FILE, Spool
from runner.tracking.writer import BATCH_RECORDS, Store, StoreUnavailableError

PATIENCE_S = 10.0


class Replay:
    """A writer of the pending records of runs, one run after another. A store that did not answer is then skipped."""

    def __init__(
        self, store: Callable[[str, str, RunInfo, int], Store] = MlflowStore, patience_s: float = PATIENCE_S
    ) -> None:
        """store: returns the store for an address, an experiment, a run and the run's start time in milliseconds.

        patience_s: longest wait for the lock of a spool. If a write takes this long to fail, its store is skipped.
        """
        self._store = store
        self._patience_s = patience_s
        self._unavailable: dict[str, str] = {}

    def run(self, run_dir: Path, uri: str | None, end: End | None) -> int:
        """Write the pending records of a run, in order, and return their number.

        uri: the run's setting ``tracking.uri``. end: written if no pending record is an end; None for a killed run,
        which is recorded as interrupted at the time of its last pending metrics. The caller must prevent a start of the
        run during the call. Raises StoreUnavailableError or OSError if the records cannot all be written (those that
        were not written stay pending); ValueError if the file with the run's :class:`Origin` is missing or damaged.
        """
        origin = Origin.read(run_dir)
        if origin.store in self._unavailable:
            raise StoreUnavailableError(self._unavailable[origin.store])
        store = self._store(origin.address(uri, Path.cwd()), origin.experiment, origin.run(run_dir), origin.started_ms)
        spool = Spool(run_dir / SPOOL_FILE)
        # Opening a run in the store marks it as running again; without pending records, nothing would end it again.
        if not spool.pending:
            return 0
        opened = False
        # If the run was executed by this process, its writer thread may still be writing.
        try:
            with spool.lock(self._patience_s):
                store.open()
                opened = True
                _add_end(spool, end)
                return self._write(store, origin.store, spool)
        except (TimeoutError, StoreUnavailableError) as error:
            # A writer holds the lock this long only if the store does not answer.
            if not opened:
                self._unavailable[origin.store] = str(error)
            raise

    def _write(self, store: Store, address: str, spool: Spool) -> int:
        written = 0
        while spool.pending:
            records, position = spool.head(BATCH_RECORDS)
            began_s = time.monotonic()
            try:
                store.write(records)
            except StoreUnavailableError as error:
                # A store that fails at once is not skipped: it may accept other runs, and trying costs no time.
                if time.monotonic() - began_s >= self._patience_s:
                    self._unavailable[address] = str(error)
                raise
            spool.advance(position)
            written += len(records)
        return written


def _add_end(spool: Spool, end: End | None) -> None:
    """Append the end of the run to its pending records unless they have one; a failed write then cannot lose it."""
    records, _ = spool.head(limit=None)
    if not any(isinstance(record, End) for record in records):
        last_ms = max((record.time_ms for record in records if isinstance(record, Metrics)), default=now_ms())
        spool.append([end or End("interrupted", last_ms)])  # shown as KILLED by MLflow
