"""``runner sweep resume``: finished jobs are kept, the others are run, and the grid changes only on request."""

import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from runner.cli import main
from runner.config.configuration import dump
from runner.errors import Interrupted, NumericError
from tests.fake_training import Call, FakeTraining
from tests.refusal import Capture, refused
from tests.sweep.tables import copied, rows, run_in, statuses

SWEEP = ["-m", "tracking=none", "tracking.pictures=false", "hydra.sweep.dir=sweep"]
RESUME = ["sweep", "resume", "sweep"]


def plan(folder: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((folder / "sweep" / "plan.json").read_text())
    return stored


def stop_at_seed(seed: int, error: Exception) -> Any:
    """Return an action that begins the run of this seed in its directory, and then ends it with an error."""

    def act(call: Call) -> None:
        if call.config.seed == seed:
            call.run_dir.mkdir(exist_ok=True)
            (call.run_dir / "run.json").write_text("{}")
            (call.run_dir / "config.yaml").write_text(dump(call.config))
            raise error

    return act


@pytest.fixture(scope="module")
def interrupted_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the working directory of a sweep over four seeds; the second job failed and the third was interrupted."""

    def act(call: Call) -> None:
        stop_at_seed(2, NumericError("the loss is nan"))(call)
        stop_at_seed(3, Interrupted(2))(call)

    folder = tmp_path_factory.mktemp("interrupted")
    assert run_in(folder, [*SWEEP, "seed=1,2,3,4"], act) == 130
    return folder


@pytest.fixture
def interrupted(interrupted_sweep: Path, fake_training: FakeTraining, folder: Path) -> FakeTraining:
    """Provide a copy of the interrupted sweep in the working directory."""
    copied(interrupted_sweep, folder)
    return fake_training


def test_finished_jobs_are_kept_and_the_others_run(interrupted: FakeTraining, folder: Path):
    assert main(RESUME) == 0
    assert [(call.config.seed, call.resume) for call in interrupted.calls] == [(2, True), (3, True), (4, False)]
    assert [call.run_dir.name for call in interrupted.calls] == ["1", "2", "3"]
    assert statuses(folder) == ["finished"] * 4


def test_a_job_that_fails_shows_its_traceback_on_request(interrupted: FakeTraining, capsys: Capture):
    interrupted.act = stop_at_seed(2, NumericError("the loss is nan"))
    assert main([*RESUME, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_failed_jobs_are_skipped_on_request(interrupted: FakeTraining, folder: Path):
    assert main([*RESUME, "--no-retry-failed"]) == 1
    assert [call.config.seed for call in interrupted.calls] == [3, 4]
    assert statuses(folder) == ["finished"] * 3 + ["failed"]


def test_a_finished_sweep_only_shows_its_table_again(fake_training: FakeTraining, folder: Path, capsys: Capture):
    main([*SWEEP, "seed=1,2"])
    table = capsys.readouterr().out
    assert main(RESUME) == 0
    assert len(fake_training.calls) == 2
    assert capsys.readouterr().out == table


def test_a_sweep_is_resumed_only_in_the_folder_of_its_start(
    interrupted: FakeTraining, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    message = refused(["sweep", "resume", str(folder / "sweep")], capsys)
    assert f"the sweep was started in '{folder}', to which its relative paths refer" in message
    assert f"the working directory is '{elsewhere}'; change it and resume" in message
    assert interrupted.calls == []


HARMLESS = {"n_jobs": 2, "timeout": None, "verbose": 0, "batch_size": "auto", "pre_dispatch": "2*n_jobs"}


@pytest.mark.parametrize(
    ("launcher", "named"),
    [
        ({"environment": {"PYTHONPATH": "/hostile"}}, "'hydra.job.env_set.PYTHONPATH'"),
        ({"name": "joblib", "environment": {"LD_PRELOAD": "x.so"}}, "'hydra.job.env_set.LD_PRELOAD'"),
        ({"name": "joblib", "settings": {**HARMLESS, "temp_folder": "/hostile"}}, "'hydra.launcher.temp_folder'"),
        ({"name": "joblib", "settings": {**HARMLESS, "pre_dispatch": "exit()"}}, "'hydra.launcher.pre_dispatch'"),
        ({"name": "joblib", "settings": {**HARMLESS, "new": ["a"]}}, "'hydra.launcher.new'"),
        ({"name": "submitit_local", "settings": {"setup": ["curl x | sh"]}}, "'hydra/launcher=submitit_local'"),
    ],
)
def test_stored_launcher_settings_that_can_run_code_are_not_used(
    interrupted: FakeTraining, folder: Path, capsys: Capture, launcher: dict[str, Any], named: str
):
    stored = plan(folder)
    (folder / "sweep" / "plan.json").write_text(json.dumps({**stored, "launcher": {**stored["launcher"], **launcher}}))
    message = refused(RESUME, capsys, code=8)
    assert f"{folder / 'sweep' / 'plan.json'} has {named}: such settings can run code" in message
    assert "repeat them after the directory" in message
    assert interrupted.calls == []


def test_environment_variables_for_jobs_come_from_the_command_line(
    fake_training: FakeTraining, folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MINE", raising=False)
    seen: list[str | None] = []

    def act(call: Call) -> None:
        seen.append(os.environ.get("MINE"))
        if len(seen) == 1:
            raise Interrupted(2)

    fake_training.act = act
    assert main([*SWEEP, "seed=1,2", "+hydra.job.env_set.MINE=1"]) == 130
    capsys.readouterr()
    refused(RESUME, capsys, code=8)
    assert "has '+hydra.job.env_set.MINE=1'" in refused([*RESUME, "seed=1,2"], capsys, code=8)
    assert main([*RESUME, "+hydra.job.env_set.MINE=2"]) == 0
    assert seen == ["1", "2", "2"]


@pytest.mark.parametrize("stored", [True, False], ids=["configuration stored", "no configuration"])
def test_a_killed_job_is_resumed_or_starts_again(interrupted: FakeTraining, folder: Path, stored: bool):
    job = folder / "sweep" / "0"
    (job / "summary.json").unlink()
    (job / "run.json").write_text("{}")
    if stored:
        shutil.copy(job / "frozen.yaml", job / "config.yaml")
    assert main(RESUME) == 0
    assert (interrupted.calls[0].config.seed, interrupted.calls[0].resume) == (1, stored)


@pytest.mark.parametrize(("ended", "trained"), [(1, []), (-1, [2])], ids=["newer", "older"])
def test_the_newer_summary_or_failure_counts(interrupted: FakeTraining, folder: Path, ended: int, trained: list[int]):
    """After ``runner resume=sweep/1``, a job can have both files: the command does not change failure.json."""
    summary, failure = (folder / "sweep" / "1" / name for name in ("summary.json", "failure.json"))
    summary.write_text((folder / "sweep" / "0" / "summary.json").read_text())
    noted = failure.stat().st_mtime_ns
    os.utime(summary, ns=(noted + ended, noted + ended))
    assert main(RESUME) == 0
    assert [call.config.seed for call in interrupted.calls if call.config.seed == 2] == trained


def test_a_run_is_resumed_with_its_machine_values(interrupted: FakeTraining, folder: Path):
    job = folder / "sweep" / "2"
    frozen = (job / "frozen.yaml").read_text()
    (job / "config.yaml").write_text(frozen.replace("threads_per_worker: null", "threads_per_worker: 7"))
    main(RESUME)
    by_seed = {call.config.seed: call.config.cluster.threads_per_worker for call in interrupted.calls}
    assert by_seed[3] == 7
    assert by_seed[4] != 7


def test_later_changes_of_configuration_files_have_no_effect(fake_training: FakeTraining, folder: Path):
    model = folder / "own" / "model" / "mine.yaml"
    model.parent.mkdir(parents=True)
    model.write_text("defaults: ['/schema/model/mlp@_here_']\nhidden: [5]\n")

    def change_files(call: Call) -> None:
        model.write_text("hidden: [6]\n" if call.config.seed == 1 else "{broken")
        if call.config.seed == 2:
            raise Interrupted(15)

    fake_training.act = change_files
    assert main(["--config-dir", "own", *SWEEP, "model=mine", "seed=1,2,3"]) == 143
    assert main(RESUME) == 143
    fake_training.act = lambda call: None
    assert main(RESUME) == 0
    assert [call.config.model.hidden for call in fake_training.calls] == [[5]] * 5


def test_another_grid_is_refused_with_the_difference(interrupted: FakeTraining, folder: Path, capsys: Capture):
    before = plan(folder)
    message = refused([*RESUME, "seed=1,2,5"], capsys)
    assert "the grid of the sweep changed:\n  new: job 4 (seed=5)\n  removed: job 2 (seed=3)\n" in message
    assert "--accept-changes" in message
    assert interrupted.calls == []
    assert plan(folder) == before
    assert sorted(path.name for path in (folder / "sweep").iterdir() if path.name.isdigit()) == ["0", "1", "2", "3"]


def test_new_jobs_of_an_accepted_grid_get_new_numbers(interrupted: FakeTraining, folder: Path):
    """The sweep keeps its name in the tracking store."""
    (folder / "sweep" / "plan.json").write_text(json.dumps(plan(folder) | {"name": "the name"}))
    assert main([*RESUME, "--accept-changes", "seed=1,5,2"]) == 0
    assert [(call.config.seed, call.run_dir.name) for call in interrupted.calls] == [(2, "1"), (5, "4")]
    assert sorted(row["seed"] for row in rows(folder)) == ["1", "2", "5"]
    jobs = [(job["number"], job["in_grid"]) for job in plan(folder)["jobs"]]
    assert jobs == list(enumerate([True, True, False, False, True]))
    assert plan(folder)["name"] == "the name"
    assert main([*RESUME, "--accept-changes", "seed=3,6"]) == 0
    assert [(call.config.seed, call.run_dir.name) for call in interrupted.calls[2:]] == [(3, "2"), (6, "5")]


def test_an_unfinished_change_adds_no_job(fake_training: FakeTraining, folder: Path, monkeypatch: pytest.MonkeyPatch):
    main([*SWEEP, "seed=1", "train.batch_size=8", "parallelism.workers=2"])
    with monkeypatch.context() as patch:
        patch.setattr("runner.sweeps.plan.Plan.write", Mock(side_effect=KeyboardInterrupt))
        assert main([*RESUME, "--accept-changes", "seed=1,5"]) == 130
    assert (folder / "sweep" / "1" / "frozen.yaml").exists()
    stopped = shutil.copytree(folder / "sweep", folder / "stopped")
    main([*RESUME, "--accept-changes", "seed=1,6"])
    assert [call.config.seed for call in fake_training.calls[1:]] == [6]
    shutil.rmtree(folder / "sweep")
    stopped.rename(folder / "sweep")
    main([*RESUME, "--accept-changes", "train.batch_size=1"])
    assert len(fake_training.calls) == 2, "an impossible job does not take the place of the unfinished one"


def test_an_additional_swept_key_adds_jobs(fake_training: FakeTraining, folder: Path):
    main([*SWEEP, "optimizer.lr=0.1", "seed=1,2"])
    assert main([*RESUME, "--accept-changes", "optimizer.lr=0.1,0.2"]) == 0
    trained = [(call.config.optimizer.lr, call.config.seed) for call in fake_training.calls]
    assert trained == [(0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2)]
    assert [call.run_dir.name for call in fake_training.calls] == ["0", "1", "2", "3"]


def test_the_same_grid_with_another_launcher_is_not_a_change(interrupted: FakeTraining, folder: Path):
    assert main([*RESUME, "seed=1,2,3,4", "hydra.sweeper.max_batch_size=1"]) == 0
    assert len(interrupted.calls) == 3
    assert plan(folder)["launcher"]["batch"] == 1


def test_a_configuration_that_would_differ_now_is_refused(fake_training: FakeTraining, folder: Path, capsys: Capture):
    own = folder / "own" / "model"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("defaults: ['/schema/model/mlp@_here_']\nhidden: [5]\n")
    main(["--config-dir", "own", *SWEEP, "model=mine", "seed=1"])
    (own / "mine.yaml").write_text("defaults: ['/schema/model/mlp@_here_']\nhidden: [6]\n")
    capsys.readouterr()
    own_files = ["--config-dir", "own"]
    message = refused([*RESUME, *own_files, "seed=1,2"], capsys)
    assert "  new: job 1 (seed=2)\n  job 0 (seed=1): the configuration differs" in message
    assert main([*RESUME, *own_files, "--accept-changes", "seed=1,2"]) == 0
    assert [call.config.model.hidden for call in fake_training.calls] == [[5], [6]]


def test_an_impossible_job_becomes_possible_when_changes_are_accepted(fake_training: FakeTraining, folder: Path):
    assert main([*SWEEP, "parallelism.workers=2", "train.batch_size=1,8"]) == 1
    assert main(RESUME) == 1
    assert len(fake_training.calls) == 1, "no job with a frozen.yaml is left to run"
    assert main([*RESUME, "--accept-changes", "parallelism.workers=1"]) == 0
    assert sorted(call.config.train.batch_size for call in fake_training.calls[1:]) == [1, 8]


def test_the_status_is_the_table_and_changes_nothing(interrupted: FakeTraining, folder: Path, capsys: Capture):
    stored = (folder / "sweep" / "jobs.csv").stat().st_mtime_ns
    assert main(["sweep", "status", "sweep"]) == 0
    assert "1 finished, 1 failed, 1 interrupted, 1 not started" in capsys.readouterr().out
    assert (folder / "sweep" / "jobs.csv").stat().st_mtime_ns == stored
    assert interrupted.calls == []


def test_a_file_that_cannot_be_opened_is_named(fake_training: FakeTraining, folder: Path, capsys: Capture):
    main([*SWEEP, "seed=1,2"])
    picture, lock = folder / "sweep" / "sweep.png", folder / "sweep" / "0" / "job.lock"
    picture.mkdir()
    lock.unlink()
    lock.symlink_to("frozen.yaml")
    capsys.readouterr()
    expected = f"cannot write {lock}: Too many levels of symbolic links ({lock}); expected a sweep that your account"
    assert expected in refused(["sweep", "status", "sweep"], capsys, code=4)
    lock.unlink()
    assert f"cannot write {picture}: Is a directory" in refused(["sweep", "plot", "sweep"], capsys, code=4)


def test_a_directory_without_a_plan_is_refused(folder: Path, capsys: Capture):
    assert f"{folder / 'sweep'}: no such directory; expected the directory of a sweep" in refused(RESUME, capsys)
    (folder / "sweep").mkdir()
    assert "holds no plan.json: expected the directory of a sweep that began to train." in refused(RESUME, capsys)
    assert not list((folder / "sweep").iterdir())


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize(
    ("change", "of_first_job", "expected"),
    [
        ({"version": 2}, {}, "plan.json is damaged: version: 2, expected 1; expected a plan that this version"),
        ({"jobs": [{"number": 0}]}, {}, "is damaged: jobs[0]: missing ['directory', 'overrides', 'swept'], expected"),
        ({"folder": 3}, {}, "is damaged: folder: 3, expected text"),
        ({}, {"directory": "../x"}, "directory '../x' of job 0 lies outside "),
        ({}, {"number": 1}, "two jobs have the same number"),
    ],
)
def test_a_damaged_plan_is_refused(
    folder: Path, capsys: Capture, change: dict[str, Any], of_first_job: dict[str, Any], expected: str
):
    stored = plan(folder)
    stored["jobs"][0] |= of_first_job
    (folder / "sweep" / "plan.json").write_text(json.dumps({**stored, **change}))
    assert expected in refused(RESUME, capsys)


def test_jobs_that_would_share_a_directory_are_refused(fake_training: FakeTraining, folder: Path, capsys: Capture):
    message = refused([*SWEEP, "seed=1,2", "hydra.sweep.subdir=same"], capsys)
    assert "job 1 (seed=2) would use the directory 'same', as job 0 (seed=1) does" in message
    assert fake_training.calls == []


def test_a_job_that_another_process_finished_meanwhile_is_not_run_again(fake_training: FakeTraining, folder: Path):
    main([*SWEEP, "seed=1"])
    assert main(["sweep", "job", "sweep", "0", "--at-once", "1"]) == 0
    assert len(fake_training.calls) == 1
