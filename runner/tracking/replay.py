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
    """A writer of the pending records of runs, one run after another.

    It skips a store that did not answer for an earlier run.
    """

    def __init__(
        self, store: Callable[[str, str, RunInfo, int], Store] = MlflowStore, patience_s: float = PATIENCE_S
    ) -> None:
        """store: function that returns the store for an address, an experiment, a run and its start time in ms.

        patience_s: longest wait for the lock of a spool. If a write takes this long to fail, later runs skip the store.
        """
        self._store = store
        self._patience_s = patience_s
        self._unavailable: dict[str, str] = {}

    def run(self, run_dir: Path, uri: str | None, end: End | None) -> int:
        """Write the pending records of a run, in order, and return their number.

        uri: the run's setting ``tracking.uri``. end: written if no pending record is an end; None for a killed run,
        which is recorded as interrupted at the time of its last pending metrics. The caller must prevent the run from
        starting during the call. Raises StoreUnavailableError or OSError if not all records can be written (the rest
        stays pending), and ValueError if the file with the run's :class:`Origin` is missing or damaged.
        """
        origin = Origin.read(run_dir)
        if origin.store in self._unavailable:
            raise StoreUnavailableError(self._unavailable[origin.store])
        store = self._store(origin.address(uri, Path.cwd()), origin.experiment, origin.run(run_dir), origin.started_ms)
        spool = Spool(run_dir / SPOOL_FILE)
        # If no record is pending, the store has the end of the run. Opening the run would mark it as running again.
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
                # A store that opens but refuses a write immediately is not skipped: it may accept other runs.
                if time.monotonic() - began_s >= self._patience_s:
                    self._unavailable[address] = str(error)
                raise
            spool.advance(position)
            written += len(records)
        return written


def _add_end(spool: Spool, end: End | None) -> None:
    """Append the end of the run to its spool unless an end is pending, so that a failed write does not lose the end."""
    records, _ = spool.head(limit=None)
    if not any(isinstance(record, End) for record in records):
        last_ms = max((record.time_ms for record in records if isinstance(record, Metrics)), default=now_ms())
        spool.append([end or End("interrupted", last_ms)])  # shown as KILLED by MLflow
