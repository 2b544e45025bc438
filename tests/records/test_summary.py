import inspect
import json
import math
import subprocess
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.errors import DataError
from runner.records.provenance import CodeState, Provenance
from runner.records.summary import (
    Failure,
    Summary,
    config_hash,
    cpu_model,
    git_commit,
    joining_facts,
    source_sha256,
    step_time,
    versions,
)

CODE = CodeState("/data", "a" * 40, "e" * 64, 120, ["notes.txt"])
SUMMARY = Summary(
    run_id="0123456789abcdef",
    status="finished",
    config_hash="c0ffee",
    output_dir="/data/run",
    strategy="sync_data",
    workers=2,
    versions={"python": "3.11.9", "numpy": "2.3.0"},
    platform="Linux",
    cpu_model="CPU",
    overrides=["optimizer.lr=0.1"],
    git_commit="a" * 40 + "-dirty",
    provenance=Provenance("runner optimizer.lr=0.1", "/data", 2, 1 << 34, [CODE]),
    devices={"/job:worker/task:0/device:gpu:0": "GPU 0: H100"},
    device_reason="cluster.device=gpu",
    repeats="fedcba9876543210",
    kernels={"cpu": "numpy 2.3.0"},
    steps=100,
    examples=3200,
    wall_seconds=12.5,
    step_time_s={"median": 0.01, "p10": 0.009, "p90": 0.02},
    examples_per_s=3200.0,
    final={"test/accuracy": 0.97, "train/loss": 0.1},
    best={"test/accuracy": 0.98},
    evaluations=10,
    headline={"test/accuracy": 0.97},
    bytes_sent_per_worker=[1000, 1001],
    peak_memory_bytes={"master": 1 << 30, "worker-0": 1 << 29},
    weights_sha256="f" * 64,
)

ERROR = Failure("NumericError", "the loss of step 3 is nan", 5)
FAILED_EARLY = Summary("1", "failed", "", "", "single", 1, {}, "", "", error=ERROR)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "summary.json"


def _edit(path: Path, *without: str, **changes: Any) -> None:
    document = {name: value for name, value in json.loads(path.read_text()).items() if name not in without}
    path.write_text(json.dumps(document | changes))


@pytest.mark.parametrize("summary", [SUMMARY, FAILED_EARLY], ids=["finished", "failed early"])
def test_a_summary_is_read_back_as_it_was_written(summary: Summary, path: Path) -> None:
    summary.write(path)
    assert Summary.read(path) == summary
    assert [file.name for file in path.parent.iterdir()] == ["summary.json"]


def test_every_field_is_documented() -> None:
    lines = inspect.getsource(Summary).splitlines()
    place = {each.name: next(k for k, line in enumerate(lines) if f" {each.name}:" in line) for each in fields(Summary)}
    bare = [name for name, k in place.items() if "  # " not in lines[k] and not lines[k - 1].startswith("    # ")]
    assert bare == ["schema_version"]


def test_numbers_that_are_not_finite_are_written_as_strict_json_and_read_back(path: Path) -> None:
    replace(SUMMARY, final={"train/loss": math.inf, "test/loss": math.nan}).write(path)
    json.loads(path.read_text(), parse_constant=pytest.fail)
    final = Summary.read(path).final
    assert final["train/loss"] == math.inf
    assert math.isnan(final["test/loss"])


def test_an_older_schema_is_read_with_defaults_of_missing_fields(path: Path) -> None:
    SUMMARY.write(path)
    _edit(path, "provenance", "repeats", "emulated", "dropped_shares", schema_version=1)
    assert Summary.read(path) == replace(SUMMARY, provenance=None, repeats="", emulated="", dropped_shares={})


@pytest.mark.parametrize(
    ("without", "changes", "message"),
    [
        ("", {"schema_version": 7, "surprise": True}, r"schema_version 7, expected 1 to 6; read it with a newer"),
        ("run_id", {"schema_version": 1}, r"missing \['run_id'\]"),
        ("weights_sha256", {}, r"missing \['weights_sha256'\]"),
        ("", {"steps": True}, r"steps: True, expected a whole number"),
        ("", {"final": {"test/loss": None}}, r"final\[test/loss\]: None, expected a number"),
        ("", {"error": {"message": "boom"}}, r"error: missing \['class_name', 'exit_code'\], expected the fields"),
        ("", {"status": "done"}, r"status 'done': expected one of finished, diverged, simulated, failed, interrupted"),
        ("", {"colour": "red"}, r"unknown \['colour'\], expected the fields run_id"),
    ],
)
def test_a_document_of_wrong_fields_is_refused(without: str, changes: dict[str, Any], message: str, path: Path) -> None:
    SUMMARY.write(path)
    _edit(path, *filter(None, [without]), **changes)
    with pytest.raises(DataError, match=rf"summary\.json: {message}"):
        Summary.read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read as JSON: .*No such file"),
        ("{", "cannot be read as JSON"),
        *((text, "schema_version") for text in ("[]", *(f'{{"schema_version": {n}}}' for n in ('"1"', "0", "true")))),
    ],
)
def test_a_file_that_is_not_a_summary_is_refused(text: str | None, message: str, path: Path) -> None:
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=rf"summary\.json: {message}"):
        Summary.read(path)


def test_an_unknown_status_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="'ok': expected one of finished"):
        replace(SUMMARY, status="ok")


def test_the_hash_of_a_configuration_depends_on_values_not_on_order() -> None:
    assert config_hash({"a": 1, "b": {"c": [1, 2]}}) == config_hash({"b": {"c": [1, 2]}, "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})
    assert config_hash({"a": 1}) != config_hash({"a": "1"})


def test_step_times_are_summarised() -> None:
    seconds = [float(n) for n in range(1, 12)]
    assert step_time(seconds) == {"median": 6.0, "p10": 2.0, "p90": 10.0}
    assert step_time([]) == {}
    assert all(type(value) is float for value in step_time(np.asarray(seconds, np.float32)).values())


def git(folder: Path, *arguments: str) -> str:
    """Run a git command with a user name and an e-mail address; return its output."""
    identity = ["-c", "user.name=n", "-c", "user.email=e@localhost", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_commit_is_marked_when_files_are_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_commit(tmp_path) is None
    (tmp_path / "code.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    git(tmp_path, "tag", "v1")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    assert git_commit(tmp_path) == commit
    (tmp_path / "untracked.txt").write_text("1")
    assert git_commit(tmp_path) == commit
    (tmp_path / "code.py").write_text("2")
    assert git_commit(tmp_path) == f"{commit}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(tmp_path) is None, "there is no git"


def test_versions_include_python_and_libraries() -> None:
    found = versions()
    assert {"python", "runner", "numpy", "mlflow"} <= found.keys()
    assert found["numpy"] == np.__version__
    assert cpu_model()


def test_no_summary_holds_a_secret_in_memory_or_in_its_file(path: Path) -> None:
    failure = Failure("ConfigError", "plugin.token=hunter2 is too short", 2)
    summary = replace(SUMMARY, overrides=["plugin.token=hunter2,hunter22", "seed=1"], status="failed", error=failure)
    assert summary.overrides == ["plugin.token=[redacted]", "seed=1"]
    assert failure.message == "plugin.token=[redacted] is too short"
    summary.write(path)
    assert "hunter2" not in path.read_text()
    assert Summary.read(path) == summary


def test_processes_of_other_hosts_need_equal_source_files(tmp_path: Path) -> None:
    assert joining_facts({}, remote=True).keys() - joining_facts({}).keys() == {"source files of runner"}
    digests = set()
    for name, content in {"a.py": "x = 1", "b/a.py": "x = 1", "b/c.cu": "", "a.txt": "not counted"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
        digests.add(source_sha256(tmp_path))
    (tmp_path / "a.py").write_text("x = 2")
    digests.add(source_sha256(tmp_path))
    assert len(digests) == 4
