"""The connection to MLflow: its import, its client, and its limits on the length of names and values."""

import fcntl
import hashlib
import json
import logging
import os
import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from runner.system.redaction import redact, redact_text
from runner.tracking.writer import StoreUnavailableError


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Wait for an exclusive lock on the file ``path``, which is created if absent, and hold it within the block.

    The operating system releases the lock of a process that dies.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


DATABASE = "mlflow.db"
ARTIFACTS = "mlruns"
URI_VARIABLE = "MLFLOW_TRACKING_URI"
EXPERIMENT_VARIABLE = "MLFLOW_EXPERIMENT_NAME"
EXPERIMENT = "runner"  # the experiment if neither a setting nor the environment names one
SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")
_SQLITE = "sqlite:///"
_ENVIRONMENT = {
    # No telemetry. MLflow reads this variable when it is imported.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # The writer thread retries. MLflow itself would retry for minutes without checking whether the run has ended.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    # MLflow's progress bar would disturb the progress bar of the run.
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
"""Environment variables of MLflow's client -> values to use if the variables are not set."""
_IMPORTING = threading.Lock()
"""Lock for the import of MLflow: if two writer threads imported it concurrently, one would get an incomplete module."""


def resolve_uri(uri: str | None, folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the store: ``uri``, else the variable MLFLOW_TRACKING_URI, else mlflow.db in ``folder``.

    The path of a SQLite store becomes absolute; a relative path starts from ``folder``. The default is the file that
    ``mlflow ui`` looks for in its working directory. Raises ValueError for a scheme that MLflow does not support.
    """
    chosen = uri or environment.get(URI_VARIABLE) or _SQLITE + DATABASE
    scheme = chosen.split(":", 1)[0].split("+", 1)[0]
    if scheme not in SCHEMES:
        examples = f"such as {_SQLITE}/home/me/{DATABASE} or http://127.0.0.1:5000"
        expected = f"an address that starts with one of {', '.join(SCHEMES)}, {examples}"
        raise ValueError(f"tracking store {redact_text(chosen)!r}: expected {expected}")
    path = sqlite_path(chosen)
    return chosen if path is None else f"{_SQLITE}{folder.absolute() / path}"


def resolve_experiment(name: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the experiment: ``name``, else the environment variable MLFLOW_EXPERIMENT_NAME, else "runner"."""
    return environment.get(EXPERIMENT_VARIABLE) or EXPERIMENT if name is None else name


def sqlite_path(uri: str) -> Path | None:
    """Return the database file of a SQLite store, None for any other store."""
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


def connect(uri: str, experiment: str) -> tuple[Any, str]:
    """Import MLflow, create the store and the experiment if absent; return (MlflowClient, experiment id).

    Processes connect to a SQLite store in turn, because its schema migration races. Raises StoreUnavailableError.
    """
    with store_errors(uri), _creation_lock(uri):
        client = _client(uri)
        return client, _experiment_id(client, experiment, uri)


def experiment_of_newest_run(uri: str) -> str | None:
    """Return the id of the experiment of the newest run; None if there is no run. Raises StoreUnavailableError."""
    with store_errors(uri), _creation_lock(uri):
        client = _client(uri)
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = client.search_runs(experiments, max_results=1, order_by=["attributes.start_time DESC"])
        return str(runs[0].info.experiment_id) if runs else None


def directories_of_runs(uri: str, run_id: str) -> list[Path]:
    """Return the directories of runs whose run_id or MLflow id begins with ``run_id``, at most two for each kind of id.

    run_id: hex digits. A SQLite store that does not exist is not created. Raises StoreUnavailableError.
    """
    path = sqlite_path(uri)
    if path is not None and not path.is_file():
        return []
    with store_errors(uri), _creation_lock(uri):
        client = _client(uri)
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        conditions = (f"tags.`runner.run_id` LIKE '{run_id}%'", f"attributes.run_id LIKE '{run_id}%'")
        found = [run for each in conditions for run in client.search_runs(experiments, each, max_results=2)]
    directories = (run.data.tags.get("runner.run_dir") for run in found)
    return [Path(directory) for directory in dict.fromkeys(directories) if directory is not None]


@contextmanager
def store_errors(uri: str) -> Iterator[None]:
    """Turn every error of MLflow, its database layer and the network into StoreUnavailableError. uri: of the store."""
    what = f"tracking store {redact_text(uri)}"
    try:
        with _IMPORTING:
            _client_class()
            from alembic.util.exc import CommandError
            from mlflow.exceptions import MlflowException
            from sqlalchemy.exc import SQLAlchemyError
    except ImportError as error:
        raise StoreUnavailableError(f"{what}: MLflow cannot be imported: {error}") from error
    try:
        yield
    except (MlflowException, SQLAlchemyError, CommandError, sqlite3.Error, OSError) as error:
        first_line = next(iter(str(error).splitlines()), "")
        raise StoreUnavailableError(redact_text(f"{what}: {type(error).__name__}: {first_line}")) from error


def _client_class() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # This import takes seconds; the writer thread does it, so that training is not delayed.
    from mlflow.tracking import MlflowClient

    return MlflowClient


def _client(uri: str) -> Any:
    """Return a client; call it within :func:`store_errors`, which has imported MLflow."""
    client_class = _client_class()
    # MLflow's log messages, such as tracebacks of failed writes, would disturb the progress bar. Each failure is logged
    # once, with its cause, when StoreUnavailableError is handled.
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    path = sqlite_path(uri)
    if path is not None:
        # This fails immediately if SQLite cannot open the file; MLflow would retry for minutes.
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA schema_version")
    return client_class(tracking_uri=uri)


def _creation_lock(uri: str) -> AbstractContextManager[None]:
    path = sqlite_path(uri)
    return nullcontext() if path is None else file_lock(path.parent / ARTIFACTS / ".lock")


def _experiment_id(client: Any, name: str, uri: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        path = sqlite_path(uri)
        # The name can be any text, such as "..", but the folder must be inside mlruns.
        folder = re.sub(r"[^\w-]", "_", name)
        artifacts = None if path is None else str(path.parent / ARTIFACTS / folder)
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            # This store has no lock file, and another process has just created the experiment.
            found = client.get_experiment_by_name(name)
    if found.lifecycle_stage != "active":
        fault = f"experiment {name!r} has been deleted; restore it or set tracking.experiment to another name"
        raise StoreUnavailableError(f"tracking store {redact_text(uri)}: {fault}")
    return str(found.experiment_id)


KEY_LENGTH = 250
PARAM_LENGTH = 6000
TAG_LENGTH = 8000
METRICS_PER_BATCH = 1000
PARAMS_PER_BATCH = 100

RUN_STATUS = {
    "finished": "FINISHED",
    "simulated": "FINISHED",
    "diverged": "FAILED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}

_REFUSED = re.compile(r"[^\w.\- :/]", re.ASCII)


def flat_params(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration as MLflow parameters: dotted keys, values as text, lists as JSON, secrets redacted."""
    return {safe_key(key): _text(redact(value, key))[:PARAM_LENGTH] for key, value in leaves(config)}


def safe_key(key: str) -> str:
    """Replace each character that MLflow rejects, such as ``@ + [ ] ,``, by ``_xHH_`` with its hexadecimal code.

    If the result has more than 250 characters, it is truncated and ends in a digest of the whole key.
    """
    safe = _REFUSED.sub(lambda match: f"_x{ord(match[0]):02x}_", key)
    if len(safe) <= KEY_LENGTH:
        return safe
    return f"{safe[: KEY_LENGTH - 9]}.{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def safe_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags with keys that MLflow accepts, values truncated to its limit, and secrets redacted."""
    return {safe_key(key): str(redact(value, key))[:TAG_LENGTH] for key, value in tags.items()}


def metric_key(name: str) -> str:
    """Return the name of a metric in MLflow.

    MLflow's pages sort the sections of charts by name. Speeds and counts of transfers should not come before the
    results, so their section is renamed to sort last: "perf/step_time_s" becomes "workers/step_time_s".
    """
    section, _, rest = name.partition("/")
    return f"workers/{rest}" if section in ("perf", "comm") else name


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for nested mappings; an empty mapping is a value."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
