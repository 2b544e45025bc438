"""How a run is recorded is kept in its directory, from its first start on and without secrets."""

import dataclasses
import logging
import stat
from pathlib import Path

import pytest

from runner.tracking.origin import ORIGIN_FILE, Origin
from tests.tracking.recorded import a_run


def test_a_job_that_goes_on_by_itself_stays_the_job_it_was(tmp_path: Path) -> None:
    job = a_run(tmp_path, sweep_dir=tmp_path.parent, sweep_name="sweep lr")
    first = Origin.begun("http://away", "runner", job)
    alone = dataclasses.replace(job, name="mlp digits single", sweep_dir=None, sweep_name="")
    again = Origin.begun("http://here", "runner", alone)
    assert again == dataclasses.replace(first, store="http://here")
    assert Origin.read(tmp_path) == again
    assert again.run(tmp_path) == job


def test_another_run_in_the_same_directory_has_another_origin(tmp_path: Path) -> None:
    Origin.begun("http://here", "runner", a_run(tmp_path))
    other = a_run(tmp_path)
    assert Origin.begun("http://here", "runner", other).run_id == other.run_id


def test_user_and_password_are_not_stored_and_required_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = Origin.begun("http://me:hunter2@host", "runner", a_run(tmp_path))
    assert "hunter2" not in (tmp_path / ORIGIN_FILE).read_text()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ValueError, match=r"recorded in http://\[redacted\]@host, expected that address with its user"):
        origin.address(None, tmp_path)
    assert origin.address("http://me:hunter2@host", tmp_path) == "http://me:hunter2@host"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@host")
    assert origin.address(None, tmp_path) == "http://me:hunter2@host"


def test_a_password_in_an_address_is_not_stored_and_the_file_is_private(tmp_path: Path) -> None:
    (tmp_path / ORIGIN_FILE).touch(0o644)
    address = "postgresql://host/db?sslmode=require&sslpassword=hunter2"
    origin = Origin.begun(address, "runner", a_run(tmp_path))
    assert origin.store == "postgresql://host/db?sslmode=require&sslpassword=[redacted]"
    assert "hunter2" not in (tmp_path / ORIGIN_FILE).read_text()
    assert stat.S_IMODE((tmp_path / ORIGIN_FILE).stat().st_mode) == 0o600
    assert origin.address(address, tmp_path) == address


def test_an_address_without_a_password_is_the_one_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    origin = Origin.begun("sqlite:////data/mlflow.db", "runner", a_run(tmp_path))
    assert origin.address(None, tmp_path) == "sqlite:////data/mlflow.db"


def test_an_address_of_no_store_is_refused(tmp_path: Path) -> None:
    origin = Origin.begun("ftp://host", "runner", a_run(tmp_path))
    with pytest.raises(ValueError, match="'ftp://host': expected an address that starts with one of sqlite"):
        origin.address(None, tmp_path)


WRONG_KIND = '{"store": 1, "experiment": "", "run_id": "", "name": "", "started_ms": 1}'


@pytest.mark.parametrize("text", [None, "{", "[]", '{"store": "http://here"}', WRONG_KIND])
def test_a_damaged_origin_is_refused_with_advice(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / ORIGIN_FILE).write_text(text)
    with pytest.raises(ValueError, match=f"does not state how the run is recorded .*; `runner resume={tmp_path}`"):
        Origin.read(tmp_path)


def test_a_damaged_origin_is_replaced_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / ORIGIN_FILE).write_text("{")
    run = a_run(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert Origin.begun("http://here", "runner", run) == Origin.read(tmp_path)
    assert "does not state how the run is recorded" in caplog.text


def test_a_directory_that_cannot_be_written_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = a_run(tmp_path / "gone")
    assert Origin.begun("http://here", "runner", run).run_id == run.run_id
    assert "can only be written by resuming it" in caplog.text
