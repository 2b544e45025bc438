"""``runner rerun``: the stored configuration in a new directory, and a comparison of the weights."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from runner.cli import main
from runner.commands.rerun import verdict
from runner.config.configuration import dump
from runner.plugin.installing import PLUGINS
from runner.records.run_directory import RunDirectory
from runner.records.stored_run import StoredRun, read_run, write_plugins
from runner.records.summary import Summary
from tests.small_runs import small_config

Capture = pytest.CaptureFixture[str]

SMALL = (
    "model=mlp",
    "model.hidden=[8]",
    "tracking=none",
    "tracking.pictures=false",
    "parallelism=single",
    "cluster.threads_per_worker=1",
)


@pytest.fixture
def run(folder: Path) -> StoredRun:
    """A run of three steps, made in this process."""
    assert main([*SMALL, "train.steps=3", "hydra.run.dir=outputs/day/first"]) == 0
    return read_run(folder / "outputs/day/first")


def edit_summary(run: StoredRun, **changes: object) -> None:
    """Change fields of a stored summary."""
    assert run.summary is not None
    replace(run.summary, **changes).write(run.path / "summary.json")  # type: ignore[arg-type]


def test_a_repetition_has_the_same_weights_and_names_the_repeated_run(
    run: StoredRun, folder: Path, capsys: Capture
) -> None:
    capsys.readouterr()
    assert main(["rerun", run.run_id[:8], "--output", "second"]) == 0
    out, _ = capsys.readouterr()
    second = read_run(folder / "second")
    assert run.summary is not None
    assert second.summary is not None
    assert out.endswith(f"\nthe same weights as run {run.run_id}: weights_sha256 {run.summary.weights_sha256}\n")
    assert second.summary.weights_sha256 == run.summary.weights_sha256
    assert second.summary.repeats == run.run_id != second.run_id
    assert second.summary.overrides == run.summary.overrides
    assert second.config_yaml.read_bytes() == run.config_yaml.read_bytes()


def test_other_weights_exit_with_1_and_list_the_differences(run: StoredRun, folder: Path, capsys: Capture) -> None:
    assert run.summary is not None
    edit_summary(run, weights_sha256="0" * 64, versions=run.summary.versions | {"numpy": "1.0.0"})
    capsys.readouterr()
    assert main(["rerun", "outputs/day/first"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (begin,) = [number for number, line in enumerate(lines) if line.startswith("other weights than run ")]
    assert lines[begin] == f"other weights than run {run.run_id}, which has {'0' * 64}"
    assert lines[begin + 1].split()[:2] == ["different", run.run_id]
    assert lines[begin + 2].split()[:5] == ["versions", "and", "machine:", "versions.numpy", "1.0.0"]
    (again,) = [path for path in (folder / "outputs").glob("*/*") if path != run.path]
    assert again.name.endswith("-rerun")


def test_a_run_without_weights_is_repeated_and_not_compared(run: StoredRun, capsys: Capture) -> None:
    edit_summary(run, weights_sha256=None, status="interrupted")
    capsys.readouterr()
    assert main(["rerun", str(run.path), "--output", "second"]) == 1
    out, err = capsys.readouterr()
    assert f"run {run.run_id} was interrupted: it has no weights_sha256 to compare with\n" in err
    assert out.endswith(f"not compared: run {run.run_id} has no weights_sha256\n")


def test_plugins_of_a_run_that_was_killed_are_compared(
    run: StoredRun, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (run.path / "summary.json").unlink()  # as a kill leaves it
    write_plugins(run.path, {"pack.m": "a" * 64})
    monkeypatch.setitem(PLUGINS, "pack.m", "b" * 64)
    main(["rerun", str(run.path), "--output", "second"])
    assert f"plugin pack.m was changed: its SHA-256 was {'a' * 64}, and is {'b' * 64}\n" in capsys.readouterr().err


def test_a_run_that_was_started_elsewhere_is_reported(
    run: StoredRun, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert main(["rerun", str(run.path)]) == 0
    assert (
        f"it was started in {folder}; relative paths of its configuration refer to this folder"
        in capsys.readouterr().err
    )


def test_a_resumed_run_is_repeated_from_its_last_configuration(run: StoredRun, capsys: Capture) -> None:
    assert main([f"resume={run.path}", "train.steps=5"]) == 0
    capsys.readouterr()
    # The rate of a cosine schedule depends on the length of the run, so its first steps were others.
    assert main(["rerun", run.run_id, "--output", "second"]) == 1
    out, err = capsys.readouterr()
    doubt = "it was started 2 times and its configuration changed: config-1.yaml has other train.steps. All steps"
    assert f"the same weights are not guaranteed: {doubt}" in err
    assert f"\nthe same weights were not guaranteed: {doubt}" in out
    second = read_run(Path("second")).summary
    assert second is not None
    assert second.steps == 5


def test_a_job_of_a_sweep_is_repeated_alone(folder: Path, capsys: Capture) -> None:
    assert main(["-m", "seed=1,2", *SMALL, "train.steps=2", "hydra.sweep.dir=multirun/day/sweep"]) == 0
    job = read_run(folder / "multirun/day/sweep/1")
    capsys.readouterr()
    assert main(["rerun", job.run_id]) == 0
    assert f"the same weights as run {job.run_id}" in capsys.readouterr().out


def stored(path: Path, weights: str | None) -> StoredRun:
    """A run that came to these weights, not read from anywhere."""
    return StoredRun(
        path, path.name, 1, Summary(path.name, "finished", "", "", "", 1, {}, "", "", weights_sha256=weights)
    )


def test_a_missing_guarantee_is_reported_with_other_weights() -> None:
    first, second = stored(Path("one"), "a" * 64), stored(Path("two"), "b" * 64)
    assert verdict(first, second, "its replicas raced") == "\n".join(
        [
            f"other weights than run one, which has {'a' * 64}",
            "the same weights were not guaranteed: its replicas raced",
            "the recorded code, versions and machine are the same",
        ]
    )
    assert "guaranteed" not in verdict(first, replace(second, summary=first.summary), "its replicas raced")


def test_a_stored_configuration_that_names_code_is_refused(folder: Path, capsys: Capture) -> None:
    with RunDirectory.open(folder / "run", resume=False) as directory:
        directory.config_yaml.write_text(dump(small_config()) + "_target_: os.system\n")
    assert main(["rerun", "run"]) == 2
    assert "_target_" in capsys.readouterr().err
    assert not (folder / "outputs").exists()


def test_an_unknown_run_is_refused_without_a_store_being_made(folder: Path, capsys: Capture) -> None:
    assert main(["rerun", "0123456789abcdef"]) == 2
    assert "no run with this id below" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_the_summary_has_the_provenance_of_a_run(run: StoredRun) -> None:
    assert run.summary is not None
    found = json.loads((run.path / "summary.json").read_text())["provenance"]
    assert found["working_directory"] == str(run.path.parents[2])
    assert found["cores"] >= 1
    kept = run.path / "code.diff"
    assert kept.exists() == any(code["diff_bytes"] for code in found["code"])
