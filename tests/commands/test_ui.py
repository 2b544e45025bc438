"""``runner ui``: the server process that replaces the command, refusals, and the state of the store."""

import os
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from runner.cli import main
from runner.commands import ui
from runner.commands.ui import store_answer
from runner.errors import ConfigError
from tests.refusal import Capture, refused
from tests.tracking.mlflow_server import free_port

Served = tuple[list[str], dict[str, str], str]
Serve = Callable[[], Served]
PORT = free_port()
HOSTS = [f"127.0.0.1:{PORT}", f"localhost:{PORT}"]


class BecameError(Exception):
    """An error that is raised instead of replacing the process, with the command and its environment."""


@pytest.fixture
def serve(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Serve:
    """Return a function that runs ``runner ui`` and returns (command of the server, its environment, output)."""

    def become(program: str, command: list[str], environment: dict[str, str]) -> None:
        raise BecameError(command, environment)

    def serve() -> Served:
        with pytest.raises(BecameError) as became:
            main(["ui", "--port", str(PORT)])
        command, environment = became.value.args
        return command, environment, capsys.readouterr().out

    monkeypatch.setattr(os, "execve", become)
    monkeypatch.setattr(ui, "experiment_of_newest_run", lambda uri: "7")
    (folder / "mlflow.db").touch()
    return serve


def test_the_command_becomes_a_local_server(serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's security settings in the environment are overridden."""
    monkeypatch.setenv("MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE", "true")
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", "*")
    command, environment, output = serve()
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    options = dict(zip(command[4::2], command[5::2], strict=True))
    assert (options["--host"], options["--port"]) == ("127.0.0.1", str(PORT))
    expected = {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{folder}/mlflow.db",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "false",
        "PYTHONSAFEPATH": "1",
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(HOSTS),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{host}" for host in HOSTS),
    }
    assert environment.items() >= (ui.SERVER_ENVIRONMENT | expected).items()
    assert f"http://127.0.0.1:{PORT}/#/experiments/7?workflowType=machine_learning " in output


def test_the_store_of_a_variable_has_no_password(serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere.db").touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    assert serve()[1]["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{folder}/elsewhere.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:hunter2@host/db")
    command, _, output = serve()
    assert "postgresql://host/db" in output
    assert "hunter2" not in "".join(command) + output


def test_the_experiments_are_opened_for_a_store_without_runs(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui, "experiment_of_newest_run", lambda uri: None)
    assert f"http://127.0.0.1:{PORT}/#/experiments?workflowType=machine_learning " in serve()[2]


@pytest.mark.parametrize(
    ("content", "arguments", "complaint"),
    [
        ("hello " * 100, ["--port", str(PORT)], "DatabaseError: file is not a database"),
        (None, [], "no runs are recorded here yet: {folder}/mlflow.db does not exist. Train first"),
        ("", ["--port", "70000"], "choose one with --port N"),
    ],
)
def test_a_store_or_a_port_that_cannot_be_used_is_refused(
    folder: Path, capsys: Capture, content: str | None, arguments: list[str], complaint: str
) -> None:
    if content is not None:
        (folder / "mlflow.db").write_text(content)
    assert complaint.format(folder=folder) in refused(["ui", *arguments], capsys, code=4)


def test_a_port_that_is_in_use_is_refused(folder: Path, capsys: Capture) -> None:
    (folder / "mlflow.db").touch()
    with socket.create_server((ui.HOST, 0)) as taken:
        number = taken.getsockname()[1]
        message = refused(["ui", "--port", str(number)], capsys, code=4)
    assert f"port {number} of 127.0.0.1 cannot be used" in message


def test_a_store_on_a_server_starts_no_server(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:5000")
    assert main(["ui"]) == 0
    out = capsys.readouterr().out
    assert "http://127.0.0.1:5000" in out
    assert "secret" not in out


def test_the_state_of_the_store_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ui.store_state() == f"sqlite:///{folder}/mlflow.db (no runs recorded yet)"
    (folder / "mlflow.db").touch()
    assert ui.store_state() == f"sqlite:///{folder}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "ftp://x")
    with pytest.raises(ConfigError, match="expected an address"):
        ui.store_state()


def test_a_database_answers_or_the_reason_is_reported_and_no_file_is_created(folder: Path) -> None:
    assert store_answer() == "to be created by the first run"
    assert list(folder.iterdir()) == []
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        database.execute("CREATE TABLE runs (id)")
    assert store_answer() == "answers"
    (folder / "mlflow.db").write_bytes(b"no database" * 100)
    assert store_answer().startswith("does not answer: file is not a database; records will wait in")


class Health(BaseHTTPRequestHandler):
    """A handler whose answer is 200 at one path, is not HTTP at another path, and is 404 at all other paths."""

    def do_GET(self) -> None:
        if self.path == "/mail/health":
            self.wfile.write(b"220 mail ready\r\n")
            return
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        pass


@pytest.fixture
def store() -> Iterator[str]:
    """Yield the address of a server that ends with the test."""
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("uri", "answer"),
    [
        ("http://me:pw@{store}", "answers"),
        ("http://{store}/elsewhere", "answers with 404"),
        ("http://{store}/mail", "does not answer: 220 mail ready"),
        ("http://127.0.0.1:9", "does not answer: "),
        ("postgresql://127.0.0.1:9/x", "not checked"),
    ],
)
def test_the_health_of_a_server_is_requested_without_the_password(
    folder: Path, store: str, monkeypatch: pytest.MonkeyPatch, uri: str, answer: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(store=store))
    found = store_answer()
    assert found.startswith(answer) if answer.startswith("does not answer") else found == answer
