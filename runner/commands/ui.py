"""``runner ui``: serve MLflow's pages of the tracking store of this folder, on this machine only."""

import http.client
import itertools
import os
import socket
import sqlite3
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NoReturn

from runner.errors import ConfigError, ResourceError
from runner.system.console import verb_parser
from runner.system.redaction import plain_address
from runner.tracking.mlflow_client import experiment_of_newest_run, resolve_uri, sqlite_path
from runner.tracking.writer import StoreUnavailableError

HOST = "127.0.0.1"
DEFAULT_PORT = 5000

SERVER_ENVIRONMENT = {
    # The pages need no jobs, and a server without jobs cannot run an attacker's jobs.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Protections of MLflow stay on even if the environment turns them off for other servers.
    "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "false",
    "MLFLOW_SERVER_X_FRAME_OPTIONS": "SAMEORIGIN",
    # A file in the working directory, such as random.py, must not be imported in place of a library. By default Python
    # and uvicorn put the working directory first on sys.path.
    "PYTHONSAFEPATH": "1",
    "UVICORN_APP_DIR": sysconfig.get_path("stdlib"),
}

_DESCRIPTION = "Show the runs that were recorded in this folder in the browser (MLflow, on this machine only)."


def main(arguments: Sequence[str]) -> int:
    """Replace this process with the MLflow server; if the store is itself a server, print its address and return.

    Raises ConfigError for an unusable store address; ResourceError if there is no store yet, if it cannot be read or if
    the port is in use.
    """
    parser = verb_parser("ui", _DESCRIPTION, "example:  runner ui --port 5001")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port on 127.0.0.1 (default: %(default)s)")
    port = parser.parse_args(arguments).port
    uri = store_uri()
    if not uri.startswith(("http:", "https:")):
        _require_store(uri)
        _require_free_port(port)
        page = _page_of_runs(uri)
        print(f"recorded runs: http://{HOST}:{port}/{page}  (store {plain_address(uri)}; Ctrl-C stops it)", flush=True)
        _become_server(uri, port)
    print(f"a server records the runs; open its own pages: {plain_address(uri)}")
    return 0


def _become_server(uri: str, port: int) -> NoReturn:
    options = {"--host": HOST, "--port": str(port), "--workers": "1"}
    command = [sys.executable, "-m", "mlflow", "server", *itertools.chain(*options.items())]
    hosts = [f"{name}:{port}" for name in (HOST, "localhost")]
    own = {
        # Passed in the environment, because every user can read the command-line options of processes.
        "MLFLOW_BACKEND_STORE_URI": uri,
        # The server answers only requests from its own pages, so no other web page can read or change runs.
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(hosts),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{host}" for host in hosts),
    }
    os.execve(command[0], command, os.environ | SERVER_ENVIRONMENT | own)


def _page_of_runs(uri: str) -> str:
    """Return the path of the page with the table of runs; MLflow's start page is about language models."""
    try:
        experiment = experiment_of_newest_run(uri)
    except StoreUnavailableError as error:
        raise ResourceError(str(error)) from error
    return f"#/experiments{'' if experiment is None else f'/{experiment}'}?workflowType=machine_learning"


def store_state() -> str:
    """Return the address of the store of this folder and, for a database file, whether the file exists."""
    uri = store_uri()
    path = sqlite_path(uri)
    return plain_address(uri) + (" (no runs recorded yet)" if path is not None and not path.is_file() else "")


def store_uri() -> str:
    """Return the address of the tracking store of this folder. Raises ConfigError for an unusable address."""
    try:
        return resolve_uri(None, Path.cwd())
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _require_store(uri: str) -> None:
    path = sqlite_path(uri)
    if path is not None and not path.is_file():
        raise ResourceError(
            f"no runs are recorded here yet: {path} does not exist. Train first, or start `runner ui` in the "
            "folder the runs were started from, or point MLFLOW_TRACKING_URI at their store"
        )


def _require_free_port(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise ResourceError(f"port {port} of {HOST} cannot be used: {error}; choose one with --port N") from error


_TIMEOUT_S = 3.0


def store_answer() -> str:
    """Return, as text, whether the store answers. MLflow is not used, because it takes seconds to import.

    A run trains even if the store does not answer; the run directory then keeps the records.
    """
    uri = store_uri()
    database = sqlite_path(uri)
    if database is not None:
        return "to be created by the first run" if not database.is_file() else _answer_of_file(database)
    if uri.startswith(("http:", "https:")):
        return _answer_of_server(plain_address(uri))
    return "not checked"


def _answer_of_file(database: Path) -> str:
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=_TIMEOUT_S)) as connection:
            connection.execute("SELECT count(*) FROM runs")
    except sqlite3.Error as error:
        return f"does not answer: {error}; records will wait in the run directories"
    return "answers"


def _answer_of_server(uri: str) -> str:
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=_TIMEOUT_S):
            return "answers"
    except urllib.error.HTTPError as error:
        return f"answers with {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"does not answer: {error}; records will wait in the run directories"
