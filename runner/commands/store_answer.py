"""Whether the tracking store of this folder answers, asked without MLflow, which takes seconds to import."""

from __future__ import annotations

import http.client
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

from runner.system.redaction import plain_address
from runner.tracking.mlflow_client import resolve_uri, sqlite_path

_TIMEOUT_S = 3.0


def store_answer() -> str:
    """What came of it, in a few words. A store that is away ends no run: records wait in the run's directory."""
    uri = resolve_uri(None, Path.cwd())
    database = sqlite_path(uri)
    if database is not None:
        return "to be made by the first run" if not database.is_file() else _answer_of_file(database)
    if uri.startswith(("http:", "https:")):
        return _answer_of_server(plain_address(uri))
    return "not asked"


def _answer_of_file(database: Path) -> str:
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=_TIMEOUT_S)) as connection:
            connection.execute("SELECT count(*) FROM runs")
    except sqlite3.Error as error:
        return f"does not answer: {error}; records would wait in each run's directory"
    return "answers"


def _answer_of_server(uri: str) -> str:
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=_TIMEOUT_S):
            return "answers"
    except urllib.error.HTTPError as error:
        return f"answers with {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"does not answer: {error}; records would wait in each run's directory"
