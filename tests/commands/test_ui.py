"""``runner ui``: the server that it becomes, and refusals."""

import os
import socket
import sys
from pathlib import Path

import pytest

from runner.cli import main
from runner.commands import ui
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
def port() -> int:
    with socket.socket() as probe:
        probe.bind((ui.HOST, 0))
        return int(probe.getsockname()[1])


@pytest.mark.usefixtures("no_exec")
def test_it_becomes_a_server_for_this_machine_over_the_store_of_this_folder(folder: Path, port: int, capsys: Capture):
    (folder / "mlflow.db").touch()
    with pytest.raises(BecameError) as became:
        main(["ui", "--port", str(port)])
    command = became.value.command
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    options = dict(zip(command[4::2], command[5::2], strict=True))
    assert options["--host"] == "127.0.0.1"
    assert options["--port"] == str(port)
    environment = became.value.environment
    assert environment["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{folder}/mlflow.db"
    assert environment.items() >= ui.SERVER_ENVIRONMENT.items()
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert environment["PYTHONSAFEPATH"] == "1"
    assert environment["MLFLOW_SERVER_ALLOWED_HOSTS"] == f"127.0.0.1:{port},localhost:{port}"
    origins = f"http://127.0.0.1:{port},http://localhost:{port}"
    assert environment["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] == origins
    page = f"http://127.0.0.1:{port}/#/experiments/7?workflowType=machine_learning "
    assert page in capsys.readouterr().out


@pytest.mark.usefixtures("no_exec")
def test_the_variable_that_moves_the_store_moves_the_pages(folder: Path, port: int, monkeypatch: pytest.MonkeyPatch):
    (folder / "elsewhere.db").touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    with pytest.raises(BecameError) as became:
        main(["ui", "--port", str(port)])
    assert became.value.environment["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{folder}/elsewhere.db"


@pytest.mark.usefixtures("no_exec")
def test_permissions_of_other_servers_do_not_apply(folder: Path, port: int, monkeypatch: pytest.MonkeyPatch):
    (folder / "mlflow.db").touch()
    monkeypatch.setenv("MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE", "true")
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", "*")
    with pytest.raises(BecameError) as became:
        main(["ui", "--port", str(port)])
    assert became.value.environment["MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE"] == "false"
    assert became.value.environment["MLFLOW_SERVER_ALLOWED_HOSTS"] == f"127.0.0.1:{port},localhost:{port}"


@pytest.mark.usefixtures("no_exec")
def test_the_password_of_a_store_is_neither_shown_nor_an_argument(
    folder: Path, port: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:hunter2@host/db")
    with pytest.raises(BecameError) as became:
        main(["ui", "--port", str(port)])
    assert "hunter2" not in "".join(became.value.command)
    assert "postgresql://host/db" in (out := capsys.readouterr().out)
    assert "hunter2" not in out


@pytest.mark.usefixtures("no_exec")
def test_a_store_without_runs_is_shown_from_its_experiments_on(
    folder: Path, port: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    (folder / "mlflow.db").touch()
    monkeypatch.setattr(ui, "experiment_of_newest_run", lambda uri: None)
    with pytest.raises(BecameError):
        main(["ui", "--port", str(port)])
    assert f"http://127.0.0.1:{port}/#/experiments?workflowType=machine_learning " in capsys.readouterr().out


def test_a_store_that_cannot_be_read_is_refused(folder: Path, port: int, capsys: Capture):
    (folder / "mlflow.db").write_text("hello " * 100)
    assert main(["ui", "--port", str(port)]) == 4
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
