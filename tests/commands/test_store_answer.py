import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from runner.commands.ui import store_answer


def test_a_missing_database_is_reported_and_not_created(folder: Path) -> None:
    assert store_answer() == "to be created by the first run"
    assert list(folder.iterdir()) == []


def test_a_database_answers_or_the_reason_is_reported(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        database.execute("CREATE TABLE runs (id)")
    assert store_answer() == "answers"
    (folder / "mlflow.db").write_bytes(b"no database" * 100)
    assert store_answer().startswith("does not answer: file is not a database; records will wait in")


class Health(BaseHTTPRequestHandler):
    """Well, at one address."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's own name
        pass


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which a store is well; closed when the fixture ends."""
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_server_is_asked_without_the_password(folder: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:pw@127.0.0.1:{port}")
    assert store_answer() == "answers"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}/elsewhere")
    assert store_answer() == "answers with 404"


def test_an_unavailable_server_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert "does not answer: " in store_answer()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://127.0.0.1:9/x")
    assert store_answer() == "not asked"


def test_a_port_that_does_not_speak_http_does_not_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"220 mail ready\r\n")

        thread = Thread(target=greet)
        thread.start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert store_answer().startswith("does not answer: 220 mail ready")
        thread.join()
