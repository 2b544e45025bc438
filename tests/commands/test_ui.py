"""``runner ui``: the server that it becomes, refusals, and whether the store answers."""

import os
import socket
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from runner.cli import main
from runner.commands import ui
from runner.commands.ui import store_answer
from runner.errors import ConfigError

Capture = pytest.CaptureFixture[str]


class BecameError(Exception):
    """Raised in place of replacing the process."""

    def __init__(self, program: str, command: list[str], environment: dict[str, str]) -> None:
        super().__init__(program)
        self.command = command
        self.environment = environment


@pytest.fixture
def no_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server comes of it, and every store's newest run is in experiment 7."""

    def become(program: str, command: list[str], environment: dict[str, str]) -> None:
        raise BecameError(program, command, environment)

    monkeypatch.setattr(os, "execve", become)
    monkeypatch.setattr(ui, "experiment_of_newest_run", lambda uri: "7")


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ui.HOST, 0))
        return int(probe.getsockname()[1])


@pytest.mark.usefixtures("no_exec")
def test_it_becomes_a_server_for_this_machine_over_the_store_of_this_folder(
    folder: Path, free_port: int, capsys: Capture
):
    (folder / "mlflow.db").touch()
    with pytest.raises(BecameError) as became:
        main(["ui", "--port", str(free_port)])
    command = became.value.command
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    options = dict(zip(command[4::2], command[5::2], strict=True))
    assert options["--host"] == "127.0.0.1"
    assert options["--port"] == str(free_port)
    environment = became.value.environment
    assert environment["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{folder}/mlflow.db"
    assert environment.items() >= ui.SERVER_ENVIRONMENT.items()
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert environment["PYTHONSAFEPATH"] == "1"
    assert environment["MLFLOW_SERVER_ALLOWED_HOSTS"] == f"127.0.0.1:{free_port},localhost:{free_port}"
    origins = f"http://127.0.0.1:{free_port},http://localhost:{free_port}"
    assert environment["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] == origins
    page = f"http://127.0.0.1:{free_port}/#/experiments/7?workflowType=machine_learning "
    assert page in capsys.readouterr().out


@pytest.mark.usefixtures("no_exec")
def test_the_variable_that_moves_the_store_moves_the_pages(
    folder: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
):
    (folder / "elsewhere.db").touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    with pytest.raises(BecameError) as became:
        main(["ui", "--port", str(free_port)])
    assert became.value.environment["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{folder}/elsewhere.db"


@pytest.mark.usefixtures("no_exec")
def test_permissions_of_other_servers_do_not_apply(folder: Path, free_port: int, monkeypatch: pytest.MonkeyPatch):
    (folder / "mlflow.db").touch()
    monkeypatch.setenv("MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE", "true")
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", "*")
    with pytest.raises(BecameError) as became:
        main(["ui", "--port", str(free_port)])
    assert became.value.environment["MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE"] == "false"
    assert became.value.environment["MLFLOW_SERVER_ALLOWED_HOSTS"] == f"127.0.0.1:{free_port},localhost:{free_port}"


@pytest.mark.usefixtures("no_exec")
def test_the_password_of_a_store_is_neither_shown_nor_an_argument(
    folder: Path, free_port: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:hunter2@host/db")
    with pytest.raises(BecameError) as became:
        main(["ui", "--port", str(free_port)])
    assert "hunter2" not in "".join(became.value.command)
    assert "postgresql://host/db" in (out := capsys.readouterr().out)
    assert "hunter2" not in out


@pytest.mark.usefixtures("no_exec")
def test_a_store_without_runs_is_shown_from_its_experiments_on(
    folder: Path, free_port: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    (folder / "mlflow.db").touch()
    monkeypatch.setattr(ui, "experiment_of_newest_run", lambda uri: None)
    with pytest.raises(BecameError):
        main(["ui", "--port", str(free_port)])
    assert f"http://127.0.0.1:{free_port}/#/experiments?workflowType=machine_learning " in capsys.readouterr().out


def test_a_store_that_cannot_be_read_is_refused(folder: Path, free_port: int, capsys: Capture):
    (folder / "mlflow.db").write_text("hello " * 100)
    assert main(["ui", "--port", str(free_port)]) == 4
    assert "DatabaseError: file is not a database" in capsys.readouterr().err


@pytest.mark.usefixtures("no_exec")
def test_without_a_store_the_error_explains_how_to_get_one(folder: Path, capsys: Capture):
    assert main(["ui"]) == 4
    assert f"no runs are recorded here yet: {folder}/mlflow.db does not exist. Train first" in capsys.readouterr().err


@pytest.mark.usefixtures("no_exec")
def test_a_taken_port_is_refused(folder: Path, capsys: Capture):
    (folder / "mlflow.db").touch()
    with socket.socket() as taken:
        taken.bind((ui.HOST, 0))
        taken.listen()
        number = taken.getsockname()[1]
        assert main(["ui", "--port", str(number)]) == 4
    assert f"port {number} of 127.0.0.1 cannot be used" in capsys.readouterr().err


@pytest.mark.usefixtures("no_exec")
def test_an_impossible_port_is_refused(folder: Path, capsys: Capture):
    (folder / "mlflow.db").touch()
    assert main(["ui", "--port", "70000"]) == 4
    assert "choose one with --port N" in capsys.readouterr().err


@pytest.mark.usefixtures("no_exec")
def test_a_store_with_a_server_needs_no_other(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:5000")
    assert main(["ui"]) == 0
    out = capsys.readouterr().out
    assert "http://127.0.0.1:5000" in out
    assert "secret" not in out


def test_the_state_of_the_store_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch):
    assert ui.store_state() == f"sqlite:///{folder}/mlflow.db (no runs recorded yet)"
    (folder / "mlflow.db").touch()
    assert ui.store_state() == f"sqlite:///{folder}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "ftp://x")
    with pytest.raises(ConfigError, match="expected an address"):
        ui.store_state()


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
