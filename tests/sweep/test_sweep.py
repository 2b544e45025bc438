"""A sweep: every job runs, a failed job does not stop it, and the table and the exit code report it."""

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from runner.cli import main
from runner.config.hydra_app import compose
from runner.config.launcher import Launcher, SweepPlace
from runner.errors import ConfigError, DirectoryInUseError, Interrupted, NumericError
from runner.records.summary import Failure
from runner.sweeps.freezing import checked_config
from runner.sweeps.locks import sweep_lock
from runner.tracking.base import SweepResult
from runner.tracking.replay import Replay
from tests.fake_training import Call, FakeTraining, summary_of
from tests.refusal import Capture
from tests.sweep.tables import rows, statuses

SWEEP = ["-m", "tracking=none", "tracking.pictures=false", "hydra.sweep.dir=sweep"]


def fail_on_seed_2(call: Call) -> None:
    if call.config.seed == 2:
        raise NumericError("the loss of step 3 is nan")


def test_every_combination_is_a_job_with_its_number(fake_training: FakeTraining, folder: Path, capsys: Capture):
    assert main([*SWEEP, "seed=1,2", "parallelism=single,sync_data", "train.steps=3"]) == 0
    grid = itertools.product("12", ("single", "sync_data"))
    assert [call.sweep for call in fake_training.calls] == [
        SweepPlace(folder / "sweep", number, {"seed": seed, "parallelism": strategy})
        for number, (seed, strategy) in enumerate(grid)
    ]
    assert [call.run_dir for call in fake_training.calls] == [folder / "sweep" / str(job) for job in range(4)]
    assert all(call.config.train.epochs is None for call in fake_training.calls)
    out, err = capsys.readouterr()
    assert out.split()[:2] == ["parallelism", "n"], "seeds are repetitions"
    assert "job 1 (seed=1, parallelism=sync_data)\n" in err


def test_a_failed_job_does_not_stop_the_sweep_and_is_last(fake_training: FakeTraining, folder: Path, capsys: Capture):
    fake_training.act = fail_on_seed_2
    assert main([*SWEEP, "seed=2,1,3", "hydra.sweeper.max_batch_size=1"]) == 1
    assert [call.config.seed for call in fake_training.calls] == [2, 1, 3]
    assert [row["seed"] for row in rows(folder)] == ["3", "1", "2"]
    assert statuses(folder) == ["finished", "finished", "failed"]
    out, err = capsys.readouterr()
    assert "NumericError: the loss of step 3 is nan" in out
    assert "job 0 (seed=2): error: the loss of step 3 is nan\njob 0 (seed=2): failed; 1 of 3 jobs ended, about" in err
    assert "job 2 (seed=3): finished, test/accuracy 0.3; 3 of 3 jobs ended\n" in err
    sweep_dir = folder / "sweep"
    again = f"run the remaining jobs with: runner sweep resume {sweep_dir}"
    assert err.endswith(f"runner: 1 of 3 jobs failed; see {sweep_dir}; {again}\n")
    assert "Traceback" not in err
    assert "Error executing job" not in err


def test_a_defect_in_a_job_shows_its_traceback_and_the_sweep_continues(fake_training: FakeTraining, capsys: Capture):
    fake_training.act = Mock(side_effect=[ZeroDivisionError("a defect"), None])
    assert main([*SWEEP, "seed=2,1"]) == 1
    assert len(fake_training.calls) == 2
    assert "ZeroDivisionError: a defect" in capsys.readouterr().err


def test_an_impossible_combination_fails_its_job_only(fake_training: FakeTraining, folder: Path, capsys: Capture):
    assert main([*SWEEP, "train.batch_size=1,8"]) == 1
    assert [call.config.train.batch_size for call in fake_training.calls] == [8]
    assert statuses(folder) == ["finished", "failed"]
    assert "job 0 (train.batch_size=1): error: train.batch_size=1 is smaller" in capsys.readouterr().err


def test_a_precision_that_the_cpu_lacks_is_refused_before_the_first_job(
    fake_training: FakeTraining, folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("runner.system.machine.cpu_flags", lambda: frozenset({"avx2"}))
    fake_training.act = lambda call: print("job 0 trains", file=sys.stderr)
    assert main([*SWEEP, "precision=float32,bfloat16"]) == 1
    assert [call.config.precision for call in fake_training.calls] == ["float32"]
    err = capsys.readouterr().err
    refused = err.index("job 1 (precision=bfloat16): error: precision=bfloat16: expected a CPU with one of avx512_bf16")
    assert refused < err.index("job 0 trains")
    assert not (folder / "sweep" / "1" / "frozen.yaml").exists()
    resumed = main(["sweep", "resume", "sweep", "precision=float32,bfloat16"])
    assert resumed == 1, "the refused job is not taken for a changed one"


def test_the_local_cpu_is_not_checked_for_jobs_on_other_machines(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runner.system.machine.cpu_flags", lambda: frozenset({"avx2"}))
    job = replace(compose(["precision=bfloat16"]), launcher=Launcher("submitit_slurm"))
    assert checked_config(job).precision == "bfloat16"
    with pytest.raises(ConfigError, match="precision=bfloat16"):
        checked_config(replace(job, launcher=Launcher("submitit_local")))


def test_the_table_has_the_summary_of_a_failed_run_but_not_of_another_run(fake_training: FakeTraining, folder: Path):
    def fail_with_a_summary(call: Call) -> None:
        error = NumericError("nan") if call.config.seed == 4 else DirectoryInUseError("in use")
        written = summary_of(call)
        call.run_dir.mkdir(exist_ok=True)
        if call.config.seed == 4:
            written = replace(written, status="failed", error=Failure(type(error).__name__, str(error), 5))
        written.write(call.run_dir / "summary.json")
        raise error

    fake_training.act = fail_with_a_summary
    assert main([*SWEEP, "seed=4,5"]) == 1
    assert [(row["test_accuracy"], row["status"], row["error"]) for row in rows(folder)] == [
        ("0.4", "failed", "NumericError: nan"),
        ("", "failed", "DirectoryInUseError: in use"),
    ]


def test_an_interruption_ends_the_whole_sweep(fake_training: FakeTraining, folder: Path, capsys: Capture):
    fake_training.act = Mock(side_effect=[None, Interrupted(2)])
    assert main([*SWEEP, "seed=1,2,3"]) == 130
    assert [call.config.seed for call in fake_training.calls] == [1, 2]
    assert statuses(folder) == ["finished", "interrupted", "not started"]
    err = capsys.readouterr().err
    assert err.count("stopped by SIGINT") == 1
    sweep = folder / "sweep"
    assert f"runner: sweep interrupted, 0 of 3 jobs failed; see {sweep}; run the remaining jobs with: " in err


def test_the_record_of_the_sweep_is_ended(fake_training: FakeTraining, folder: Path, monkeypatch: pytest.MonkeyPatch):
    ended: list[tuple[Path, SweepResult]] = []
    monkeypatch.setattr("runner.tracking.NoTracking.finish_sweep", lambda self, *arguments: ended.append(arguments))
    fake_training.act = fail_on_seed_2
    main(["-m", "tracking=none", "tracking.pictures=false", "hydra.sweep.dir=sweep", "seed=1,2"])
    ((directory, end),) = ended
    sweep = folder / "sweep"
    assert (directory, end.status) == (sweep, "failed")
    assert end.artifacts == [sweep / "jobs.csv", sweep / "seeds.csv", sweep / "jobs.md"]
    assert end.params == {"seed": "1, 2"}
    assert end.metrics == {"jobs_finished": 1.0, "jobs_failed": 1.0, "best_test_accuracy": 0.1}
    assert f"| 0 | 1 | 0.1 |  | finished |  | {sweep / '0'} |  |" in end.description
    assert (sweep / "jobs.md").read_text() == end.description + "\n"


def leave_records(call: Call) -> None:
    call.run_dir.mkdir(exist_ok=True)
    (call.run_dir / "config.yaml").write_text("{}")
    (call.run_dir / "tracking-spool.jsonl").write_text("")


def test_pending_records_of_jobs_are_written_before_the_record_of_the_sweep_ends(
    fake_training: FakeTraining, folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    happened: list[str] = []
    monkeypatch.setattr(Replay, "run", lambda self, run_dir, uri, end: happened.append(run_dir.name) or 3)
    monkeypatch.setattr("runner.tracking.NoTracking.finish_sweep", lambda self, *arguments: happened.append("end"))
    fake_training.act = leave_records
    assert main([*SWEEP, "seed=1,2"]) == 0
    assert happened == ["0", "1", "end"]
    assert "runner: written to the tracking store: 6 records of 2 runs\n" in capsys.readouterr().err
    assert main(["sweep", "resume", "sweep"]) == 0
    assert happened == ["0", "1", "end"] * 2, "also when nothing is left to do"


def test_after_an_interruption_pending_records_are_only_reported(
    fake_training: FakeTraining, folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    def leave_records_and_stop(call: Call) -> None:
        leave_records(call)
        raise Interrupted(2)

    asked: list[Path] = []
    monkeypatch.setattr(Replay, "run", lambda self, run_dir, uri, end: asked.append(run_dir) or 3)
    fake_training.act = leave_records_and_stop
    assert main([*SWEEP, "seed=1,2"]) == 130
    assert asked == []
    err = capsys.readouterr().err
    sweep = folder / "sweep"
    assert f"warning: tracking records of 1 run are still pending (sweep interrupted): {sweep / '0'}\n" in err
    assert f"warning: write them with `runner sync {sweep}`\n" in err


def test_a_used_directory_is_refused_with_a_quoted_command(
    fake_training: FakeTraining, folder: Path, capsys: Capture
) -> None:
    sweep, arguments = folder / "my sweep", ["-m", "tracking=none", "seed=1", 'hydra.sweep.dir="my sweep"']
    main(arguments)
    assert main(arguments) == 9
    assert f"with `runner sweep resume '{sweep}'`, or choose another" in capsys.readouterr().err
    with sweep_lock(sweep):
        assert main(["sweep", "resume", str(sweep)]) == 9
    err = capsys.readouterr().err
    assert f"the sweep in {sweep} is running" in err
    assert f"`runner sweep status '{sweep}'` shows its progress" in err
    assert len(fake_training.calls) == 1


def test_values_that_a_configuration_sweeps_are_recorded_as_swept(fake_training: FakeTraining, folder: Path):
    own = folder / "own" / "experiment"
    own.mkdir(parents=True)
    (own / "seeds.yaml").write_text("# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {seed: '4,5'}}}\n")
    assert main(["--config-dir", "own", "experiment=seeds", *SWEEP[1:]]) == 0
    assert [dict(call.sweep.swept) for call in fake_training.calls if call.sweep] == [{"seed": "4"}, {"seed": "5"}]


def test_a_sweep_over_secrets_shows_none_of_them(fake_training: FakeTraining, folder: Path, capsys: Capture):
    arguments = [argument for argument in SWEEP if argument != "tracking=none"]
    fake_training.act = fail_on_seed_2
    uris = ",".join(f"http://me:{secret}@127.0.0.1:9" for secret in ("hunter2", "hunter3"))
    assert main([*arguments, "seed=2,3", f"tracking.uri={uris}"]) == 1
    out, err = capsys.readouterr()
    tables = "".join(path.read_text() for path in (folder / "sweep").glob("*.*") if path.suffix in (".csv", ".md"))
    assert "hunter" not in out + err + tables
    assert [row["tracking_uri"].replace("\\", "") for row in rows(folder)] == ["http://[redacted]@127.0.0.1:9"] * 4
    assert out.count("[redacted]") == 2, "rows of different secrets stay apart"
