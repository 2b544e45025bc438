"""``runner rerun``: the configuration it uses, why equal weights may not be guaranteed, and the compared weights."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from runner.cli import main
from runner.commands.rerun import repetition_here, repetition_of, verdict
from runner.config.check import check
from runner.config.configuration import dump, fix_machine_values, to_plain
from runner.engine.compile.program import OneProcess, Program
from runner.engine.graph import Graph
from runner.plugin.installing import PLUGINS
from runner.records.run_directory import RunDirectory
from runner.records.stored_run import StoredRun, read_run, write_plugins
from runner.records.summary import Summary
from runner.training.devices import in_one_process
from tests.gpus import NO_DRIVER, gpu, machine
from tests.refusal import Capture
from tests.small_runs import SMALL, SMALL_MODEL, composed_config, small_config

BACKUPS = ("parallelism=sync_data", "parallelism.combine=parameter_server", "parallelism.backup_workers=1")
ASYNC = ("parallelism=async_data",)
SLOW = ("cluster=slow_worker",)


def stored_at(path: Path, *, starts: int = 1) -> StoredRun:
    """Return a run in ``path`` that was started ``starts`` times and has no summary."""
    return StoredRun(path, "0123", starts, None)


@pytest.mark.parametrize(
    "overrides",
    [
        ("parallelism=sync_data",),
        (*ASYNC, "parallelism.virtual_time=true"),
        (*ASYNC, "parallelism.replay=endings-1.jsonl"),
        (*BACKUPS, "parallelism.replay=contributors.jsonl"),
    ],
)
def test_a_deterministic_run_is_repeated_with_its_configuration(overrides: tuple[str, ...], tmp_path: Path) -> None:
    config = small_config(*overrides)
    for record in ("endings-1.jsonl", "contributors.jsonl"):
        (tmp_path / record).touch()
    found = repetition_of(config, stored_at(tmp_path, starts=2))
    assert (found.config, found.replayed, found.doubt) == (config, None, "")


@pytest.mark.parametrize("overrides", [("parallelism=single",), ASYNC])
def test_without_its_gpus_a_run_is_repeated_without_guarantee(overrides: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "endings-1.jsonl").touch()
    config = fix_machine_values(composed_config(*SMALL, *overrides), 1, lambda: machine(gpu()))
    found = repetition_here(config, stored_at(tmp_path), lambda: NO_DRIVER)
    assert (found.config.cluster.device_taken, found.config.cluster.gpus, found.replayed) == ("cpu", None, None)
    assert found.doubt == "the run used a GPU, and the repetition uses the CPU: there is no NVIDIA driver: no libcuda"
    again = repetition_here(config, stored_at(tmp_path), lambda: machine(gpu()))
    assert again == repetition_of(config, stored_at(tmp_path))


def test_with_fewer_gpus_the_record_is_replayed_on_the_available_ones(tmp_path: Path) -> None:
    (tmp_path / "endings-1.jsonl").touch()
    two = machine(gpu(0), gpu(1))
    config = fix_machine_values(composed_config(*SMALL, *ASYNC), 1, lambda: two)
    (tmp_path / "config-1.yaml").write_text(dump(config))
    found = repetition_here(config, stored_at(tmp_path), lambda: machine(gpu()))
    assert (config.cluster.gpus, found.config.cluster.gpus, found.doubt) == ([0, 1], [0, 0], "")
    assert found.replayed == tmp_path / "endings-1.jsonl"


@pytest.mark.parametrize(
    ("overrides", "record", "starts"),
    [((*ASYNC, *SLOW), "endings-1.jsonl", 1), ((*BACKUPS, *SLOW), "contributors.jsonl", 2)],
)
def test_the_record_of_a_race_is_replayed(overrides: tuple[str, ...], record: str, starts: int, tmp_path: Path) -> None:
    (tmp_path / record).touch()
    found = repetition_of(small_config(*overrides), stored_at(tmp_path, starts=starts))
    assert (found.replayed, found.doubt) == (tmp_path / record, "")
    assert found.config.parallelism.replay == str(tmp_path / record)
    check(found.config)
    assert found.config.cluster.emulate == (record == "contributors.jsonl")


@pytest.mark.parametrize("apart", ["cluster.one_process=false", "cluster/launcher=slurm"])
def test_replicas_of_separate_processes_are_replayed_in_one_process(apart: str, tmp_path: Path) -> None:
    (tmp_path / "endings-1.jsonl").touch()
    config = small_config("parallelism=async_data", apart)
    again = repetition_of(config, stored_at(tmp_path)).config
    together = Program(Graph(()), {}, {}, workers=2, one_process=OneProcess())
    assert in_one_process(again.cluster, together, "async_data") is together


@pytest.mark.parametrize(
    ("overrides", "starts", "doubt"),
    [
        (ASYNC, 1, "depends on the order of the replicas, and .*endings-1.jsonl does not exist"),
        (ASYNC, 2, "depends on the order of the replicas, which has a separate record for each of the 2 starts"),
        (BACKUPS, 1, "depends on the order of the workers, and .*contributors.jsonl does not exist"),
    ],
)
def test_a_missing_record_is_a_doubt(overrides: tuple[str, ...], starts: int, doubt: str, tmp_path: Path) -> None:
    if starts == 2:
        (tmp_path / "endings-1.jsonl").touch()
    config = small_config(*overrides)
    found = repetition_of(config, stored_at(tmp_path, starts=starts))
    assert (found.config, found.replayed) == (config, None)
    assert re.search(doubt, found.doubt)


@pytest.mark.parametrize(
    ("overrides", "earlier", "keys"),
    [
        (("parallelism=sync_data",), ("parallelism=single",), "parallelism, cluster.cores_per_worker, cluster.workers"),
        (BACKUPS, (*BACKUPS, "train.steps=2"), "train.steps"),
        (BACKUPS, ("parallelism=sync_data",), "parallelism.combine, parallelism.servers, parallelism.backup_workers"),
        ((*ASYNC, "parallelism.virtual_time=true"), ASYNC, "parallelism.virtual_time"),
        (ASYNC, (*ASYNC, "train.patience=2"), "train.patience"),
    ],
)
def test_a_change_is_a_doubt(overrides: tuple[str, ...], earlier: tuple[str, ...], keys: str, tmp_path: Path) -> None:
    (tmp_path / "contributors.jsonl").touch()
    (tmp_path / "config-2.yaml").write_text(dump(small_config(*earlier, "cluster.threads_per_worker=1")))
    config = small_config(*overrides, "cluster.threads_per_worker=1")
    found = repetition_of(config, stored_at(tmp_path, starts=3))
    assert (found.config, found.replayed) == (config, None)
    assert "the run was started 3 times and its configuration changed: config-2.yaml differs in " in found.doubt
    assert keys in found.doubt


def test_keys_without_influence_on_results_may_change(tmp_path: Path) -> None:
    (tmp_path / "contributors.jsonl").touch()
    (tmp_path / "config-x.yaml").write_text("no configuration of an earlier start")
    (tmp_path / "config-1.yaml").write_text(dump(small_config(*BACKUPS, "checkpoint.keep=9", "trace=true")))
    found = repetition_of(small_config(*BACKUPS), stored_at(tmp_path, starts=2))
    assert (found.replayed, found.doubt) == (tmp_path / "contributors.jsonl", "")


def test_keys_that_an_earlier_version_lacked_are_not_reported_as_changed(tmp_path: Path) -> None:
    (tmp_path / "contributors.jsonl").touch()
    config = small_config(*BACKUPS)
    earlier = to_plain(config)
    for key in ("device", "device_taken", "server_device", "gpus", "one_process", "tf32", "compare_plans"):
        del earlier["cluster"][key]
    del earlier["cluster"]["stragglers"]["sigma"], earlier["train"]["min_delta"], earlier["init_from"]
    (tmp_path / "config-1.yaml").write_text(yaml.safe_dump(earlier))
    assert repetition_of(config, stored_at(tmp_path, starts=2)).doubt == ""
    rounded = fix_machine_values(small_config(*BACKUPS, "cluster.tf32=true"), 1, lambda: NO_DRIVER)
    assert repetition_of(rounded, stored_at(tmp_path, starts=2)).doubt == "", "without a GPU, tf32 has no effect"
    here = machine(gpu())
    on_gpu = fix_machine_values(composed_config(*SMALL, *BACKUPS, "cluster.tf32=true"), 1, lambda: here)
    (tmp_path / "config-1.yaml").write_text(yaml.safe_dump(earlier | {"model": to_plain(on_gpu)["model"]}))
    doubt = repetition_of(on_gpu, stored_at(tmp_path, starts=2)).doubt
    assert "config-1.yaml differs in cluster.gpus, cluster.tf32, cluster.device_taken. All" in doubt


def test_every_earlier_configuration_of_a_run_is_named_in_order(tmp_path: Path) -> None:
    for start, steps in ((10, 2), (9, 1)):
        (tmp_path / f"config-{start}.yaml").write_text(dump(small_config(f"train.steps={steps}")))
    doubt = repetition_of(small_config(), stored_at(tmp_path, starts=11)).doubt
    assert "config-9.yaml differs in train.steps; config-10.yaml differs in train.steps" in doubt


RERUN = (*SMALL_MODEL, *SMALL, "cluster.threads_per_worker=1")


@pytest.fixture
def run(folder: Path) -> StoredRun:
    """Return a run of three steps, trained in this process."""
    assert main([*RERUN, "hydra.run.dir=outputs/day/first"]) == 0
    return read_run(folder / "outputs/day/first")


def edit_summary(run: StoredRun, **changes: object) -> None:
    assert run.summary is not None
    replace(run.summary, **changes).write(run.path / "summary.json")  # type: ignore[arg-type]


def test_a_repetition_has_equal_weights_and_names_its_run(run: StoredRun, folder: Path, capsys: Capture) -> None:
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


def test_different_weights_exit_with_1_and_list_the_differences(run: StoredRun, folder: Path, capsys: Capture) -> None:
    assert run.summary is not None
    edit_summary(run, weights_sha256="0" * 64, versions=run.summary.versions | {"numpy": "1.0.0"})
    capsys.readouterr()
    assert main(["rerun", "outputs/day/first"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (begin,) = [number for number, line in enumerate(lines) if line.startswith("the weights differ from those of run ")]
    assert lines[begin] == f"the weights differ from those of run {run.run_id}: its weights_sha256 is {'0' * 64}"
    assert lines[begin + 1].split()[:2] == ["different", run.run_id]
    assert lines[begin + 2].split()[:5] == ["versions", "and", "machine:", "versions.numpy", "1.0.0"]
    (again,) = [path for path in (folder / "outputs").glob("*/*") if path != run.path]
    assert again.name.endswith("-rerun")


def test_a_run_without_weights_is_repeated_and_not_compared(run: StoredRun, capsys: Capture) -> None:
    edit_summary(run, weights_sha256=None, status="interrupted")
    capsys.readouterr()
    assert main(["rerun", str(run.path), "--output", "second"]) == 1
    out, err = capsys.readouterr()
    assert f"run {run.run_id} was interrupted, so it has no weights_sha256 for the comparison\n" in err
    assert out.endswith(f"not compared: run {run.run_id} has no weights_sha256\n")


def test_plugins_of_a_killed_run_are_compared(run: StoredRun, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    (run.path / "summary.json").unlink()  # as after a kill
    write_plugins(run.path, {"pack.m": "a" * 64})
    monkeypatch.setitem(PLUGINS, "pack.m", "b" * 64)
    main(["rerun", str(run.path), "--output", "second"])
    assert f"plugin pack.m was changed: its SHA-256 was {'a' * 64} and is now {'b' * 64}\n" in capsys.readouterr().err


def test_a_run_that_was_started_elsewhere_is_reported(
    run: StoredRun, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert main(["rerun", str(run.path)]) == 0
    expected = f"the run was started in {folder}; its relative paths now refer to {folder / 'elsewhere'}\n"
    assert expected in capsys.readouterr().err


def test_a_resumed_run_is_repeated_with_its_last_configuration(run: StoredRun, capsys: Capture) -> None:
    assert main([f"resume={run.path}", "train.steps=5"]) == 0
    capsys.readouterr()
    # The learning rate of a cosine schedule depends on the number of steps, so the first steps differed.
    assert main(["rerun", run.run_id, "--output", "second"]) == 1
    out, err = capsys.readouterr()
    doubt = "the run was started 2 times and its configuration changed: config-1.yaml differs in train.steps. All steps"
    assert f"the same weights are not guaranteed: {doubt}" in err
    assert f"\nthe same weights were not guaranteed: {doubt}" in out
    second = read_run(Path("second")).summary
    assert second is not None
    assert second.steps == 5


def test_a_job_of_a_sweep_is_repeated_alone(folder: Path, capsys: Capture) -> None:
    assert main(["-m", "seed=1,2", *RERUN, "hydra.sweep.dir=multirun/day/sweep"]) == 0
    job = read_run(folder / "multirun/day/sweep/1")
    capsys.readouterr()
    assert main(["rerun", job.run_id]) == 0
    assert f"the same weights as run {job.run_id}" in capsys.readouterr().out


def stored(path: Path, weights: str | None) -> StoredRun:
    """Return a run that has no files and whose summary has this hash of the weights."""
    summary = Summary(path.name, "finished", "", "", "", 1, {}, "", "", weights_sha256=weights)
    return StoredRun(path, path.name, 1, summary)


def test_a_missing_guarantee_is_reported_if_the_weights_differ() -> None:
    first, second = stored(Path("one"), "a" * 64), stored(Path("two"), "b" * 64)
    assert verdict(first, second, "its replicas raced") == "\n".join(
        [
            f"the weights differ from those of run one: its weights_sha256 is {'a' * 64}",
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


def test_an_unknown_run_is_refused_and_no_store_is_created(folder: Path, capsys: Capture) -> None:
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
