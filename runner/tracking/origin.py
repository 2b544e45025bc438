"""``tracking.json``, next to the spool of a run: the facts that another process needs to write the pending records."""

import dataclasses
import json
import logging
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from runner.system.files import replace_durably
from runner.system.json_file import parse_json
from runner.system.redaction import REDACTED, redact_text
from runner.system.schema import LenientRecord
from runner.tracking.base import RunInfo
from runner.tracking.mlflow_client import URI_VARIABLE, resolve_uri
from runner.tracking.records import now_ms

_log = logging.getLogger(__name__)

ORIGIN_FILE = "tracking.json"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Origin:
    """The store in which a run is recorded, and the identity of the run in that store.

    store: the address, without user and password. started_ms: first start of the run, in milliseconds since 1970. name,
    sweep_dir, sweep_name: from ``RunInfo`` at the first start, so that a job resumed alone still belongs to its sweep.
    mlflow_run_id: the id of the run in MLflow; "" until the store has created the run.
    """

    store: str
    experiment: str
    run_id: str
    name: str
    started_ms: int
    sweep_dir: str | None = None
    sweep_name: str = ""
    mlflow_run_id: str = ""

    @classmethod
    def begun(cls, uri: str, experiment: str, run: RunInfo) -> Self:
        """Return the origin of a run that starts or resumes, and write it to the run's directory.

        If the directory cannot be written, the failure is logged and the run continues.
        """
        path = run.run_dir / ORIGIN_FILE
        sweep_dir = None if run.sweep_dir is None else str(run.sweep_dir)
        fresh = cls("", "", run.run_id, run.name, now_ms(), sweep_dir, run.sweep_name)
        earlier, store = cls._earlier(path, run) or fresh, redact_text(uri)
        known_id = earlier.mlflow_run_id if (earlier.store, earlier.experiment) == (store, experiment) else ""
        origin = dataclasses.replace(earlier, store=store, experiment=experiment, mlflow_run_id=known_id)
        try:
            origin._write(path)
        except OSError as error:
            _log.error("%s: %s; pending records of this run can only be written by resuming it", path, error)
        return origin

    @classmethod
    def read(cls, run_dir: Path) -> Self:
        """Return the origin in a run's directory; raises ValueError if there is none or it is damaged."""
        path = run_dir / ORIGIN_FILE
        try:
            return LenientRecord(cls, complete=False).read(parse_json(path.read_bytes(), _MAX_BYTES))
        except (OSError, ValueError) as error:
            advice = f"`runner resume={shlex.quote(str(run_dir))}` writes its records"
            raise ValueError(f"{path} does not state how the run is recorded ({error}); {advice}") from error

    @classmethod
    def created(cls, run_dir: Path, mlflow_run_id: str) -> None:
        """Add the id that MLflow gave to the run in ``run_dir``; does nothing in a directory without an origin.

        If the file cannot be changed, the failure is logged; the id can still be found in the store by ``run_id``.
        """
        path = run_dir / ORIGIN_FILE
        try:
            if path.exists() and (origin := cls.read(run_dir)).mlflow_run_id != mlflow_run_id:
                dataclasses.replace(origin, mlflow_run_id=mlflow_run_id)._write(path)
        except (OSError, ValueError) as error:
            _log.warning("%s: the id of the run in MLflow could not be added: %s", path, error)

    def _write(self, path: Path) -> None:
        # Only the owner may read the file, because redaction may miss a secret in an address.
        replace_durably(path, (json.dumps(dataclasses.asdict(self), indent=1) + "\n").encode(), mode=0o600)

    def run(self, run_dir: Path) -> RunInfo:
        """Return the run in the form that a tracker expects."""
        sweep_dir = None if self.sweep_dir is None else Path(self.sweep_dir)
        return RunInfo(self.run_id, self.name, run_dir, sweep_dir=sweep_dir, sweep_name=self.sweep_name)

    def address(self, uri: str | None, folder: Path) -> str:
        """Return the address of the store with user and password.

        If user and password were removed from the stored address, ``resolve_uri(uri, folder)`` must return the same
        address with both. Raises ValueError if it returns another address.
        """
        if REDACTED not in self.store:
            return resolve_uri(self.store, folder)
        found = resolve_uri(uri, folder)
        if redact_text(found) != self.store:
            advice = f"set {URI_VARIABLE} to this address with its user and password"
            raise ValueError(f"the run is recorded in {self.store}: {advice}")
        return found

    @classmethod
    def _earlier(cls, path: Path, run: RunInfo) -> Self | None:
        if not path.exists():
            return None
        try:
            origin = cls.read(path.parent)
        except ValueError as error:
            _log.warning("%s", error)
            return None
        return origin if origin.run_id == run.run_id else None
