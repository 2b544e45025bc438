"""The configuration that repeats a run, and the reasons against a guarantee."""

import re
from pathlib import Path

import pytest
import yaml

from runner.commands.rerun import repetition_here, repetition_of
from runner.config.check import check
from runner.config.configuration import dump, fix_machine_values, to_plain
from runner.config.hydra_app import compose
from runner.engine.compile.program import OneProcess, Program
from runner.engine.graph.graph import Graph
from runner.records.stored_run import StoredRun
from runner.training.devices import in_one_process
from tests.gpus import NO_DRIVER, gpu, machine
from tests.small_runs import SMALL, small_config

BACKUPS = ("parallelism=sync_data", "parallelism.combine=parameter_server", "parallelism.backup_workers=1")
SLOW = ("cluster=slow_worker",)


def stored(path: Path, *, starts: int = 1) -> StoredRun:
    """A run in ``path``."""
    return StoredRun(path, "0123", starts, None)


@pytest.mark.parametrize(
    "overrides",
    [
        ("parallelism=sync_data",),
        ("parallelism=async_data", "parallelism.virtual_time=true"),
        ("parallelism=async_data", "parallelism.replay=endings-1.jsonl"),
        (*BACKUPS, "parallelism.replay=contributors.jsonl"),
    ],
)
def test_a_run_without_a_race_is_repeated_with_its_configuration(overrides: tuple[str, ...], tmp_path: Path) -> None:
    config = small_config(*overrides)
    for record in ("endings-1.jsonl", "contributors.jsonl"):
        (tmp_path / record).touch()
    found = repetition_of(config, stored(tmp_path, starts=2))
    assert (found.config, found.replayed, found.doubt) == (config, None, "")


@pytest.mark.parametrize("overrides", [("parallelism=single",), ("parallelism=async_data",)])
def test_without_the_gpus_of_a_run_the_cpu_repeats_it_without_guarantee(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "endings-1.jsonl").touch()
    config = fix_machine_values(compose([*SMALL, *overrides]).config(), 1, lambda: machine(gpu()))
    found = repetition_here(config, stored(tmp_path), lambda: NO_DRIVER)
    assert (found.config.cluster.device_taken, found.config.cluster.gpus, found.replayed) == ("cpu", None, None)
    assert found.doubt == "it ran on a GPU, and runs on the CPU here: there is no NVIDIA driver: no libcuda"
    again = repetition_here(config, stored(tmp_path), lambda: machine(gpu()))
    assert again == repetition_of(config, stored(tmp_path))


def test_on_a_machine_with_fewer_gpus_the_record_is_replayed_on_those(tmp_path: Path) -> None:
    (tmp_path / "endings-1.jsonl").touch()
    two = machine(gpu(0), gpu(1))
    config = fix_machine_values(compose([*SMALL, "parallelism=async_data"]).config(), 1, lambda: two)
    (tmp_path / "config-1.yaml").write_text(dump(config))
    found = repetition_here(config, stored(tmp_path), lambda: machine(gpu()))
    assert (config.cluster.gpus, found.config.cluster.gpus, found.doubt) == ([0, 1], [0, 0], "")
    assert found.replayed == tmp_path / "endings-1.jsonl"


@pytest.mark.parametrize(
    ("overrides", "record", "starts"),
    [
        (("parallelism=async_data", *SLOW), "endings-1.jsonl", 1),
        ((*BACKUPS, *SLOW), "contributors.jsonl", 2),
    ],
)
def test_the_record_of_a_race_is_replayed(overrides: tuple[str, ...], record: str, starts: int, tmp_path: Path) -> None:
    (tmp_path / record).touch()
    found = repetition_of(small_config(*overrides), stored(tmp_path, starts=starts))
    assert (found.replayed, found.doubt) == (tmp_path / record, "")
    assert found.config.parallelism.replay == str(tmp_path / record)
    check(found.config)
    assert found.config.cluster.emulate == (record == "contributors.jsonl")


def test_replicas_that_had_processes_of_their_own_are_replayed_in_one(tmp_path: Path) -> None:
    (tmp_path / "endings-1.jsonl").touch()
    config = small_config("parallelism=async_data", "cluster.one_process=false")
    again = repetition_of(config, stored(tmp_path)).config
    together = Program(Graph(()), {}, {}, workers=2, one_process=OneProcess())
    assert in_one_process(again.cluster, together, "async_data") is together


@pytest.mark.parametrize(
    ("overrides", "starts", "doubt"),
    [
        (("parallelism=async_data",), 1, "its replicas raced, and .*endings-1.jsonl does not exist"),
        (("parallelism=async_data",), 2, "its replicas raced, and it was started 2 times"),
        (BACKUPS, 1, "backup workers raced, and .*contributors.jsonl does not exist"),
    ],
)
def test_without_a_whole_record_nothing_is_promised(
    overrides: tuple[str, ...], starts: int, doubt: str, tmp_path: Path
) -> None:
    if starts == 2:
        (tmp_path / "endings-1.jsonl").touch()
    config = small_config(*overrides)
    found = repetition_of(config, stored(tmp_path, starts=starts))
    assert (found.config, found.replayed) == (config, None)
    assert re.search(doubt, found.doubt)


@pytest.mark.parametrize(
    ("overrides", "earlier", "keys"),
    [
        (("parallelism=sync_data",), ("parallelism=single",), "parallelism, cluster.cores_per_worker, cluster.workers"),
        (BACKUPS, (*BACKUPS, "train.steps=2"), "train.steps"),
        (BACKUPS, ("parallelism=sync_data",), "parallelism.combine, parallelism.servers, parallelism.backup_workers"),
        (
            ("parallelism=async_data", "parallelism.virtual_time=true"),
            ("parallelism=async_data",),
            "parallelism.virtual_time",
        ),
        (("parallelism=async_data",), ("parallelism=async_data", "train.patience=2"), "train.patience"),
    ],
)
def test_a_run_whose_configuration_changed_is_not_guaranteed(
    overrides: tuple[str, ...], earlier: tuple[str, ...], keys: str, tmp_path: Path
) -> None:
    (tmp_path / "contributors.jsonl").touch()
    (tmp_path / "config-2.yaml").write_text(dump(small_config(*earlier, "cluster.threads_per_worker=1")))
    config = small_config(*overrides, "cluster.threads_per_worker=1")
    found = repetition_of(config, stored(tmp_path, starts=3))
    assert (found.config, found.replayed) == (config, None)
    assert "it was started 3 times and its configuration changed: config-2.yaml has other " in found.doubt
    assert keys in found.doubt


def test_keys_without_influence_on_results_may_change(tmp_path: Path) -> None:
    (tmp_path / "contributors.jsonl").touch()
    (tmp_path / "config-x.yaml").write_text("no configuration of an earlier start")
    (tmp_path / "config-1.yaml").write_text(dump(small_config(*BACKUPS, "checkpoint.keep=9", "trace=true")))
    found = repetition_of(small_config(*BACKUPS), stored(tmp_path, starts=2))
    assert (found.replayed, found.doubt) == (tmp_path / "contributors.jsonl", "")


def test_keys_that_an_earlier_version_did_not_have_did_not_change_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "contributors.jsonl").touch()
    config = small_config(*BACKUPS)
    earlier = to_plain(config)
    for key in ("device", "device_taken", "server_device", "gpus", "one_process", "tf32", "compare_plans"):
        del earlier["cluster"][key]
    del earlier["cluster"]["stragglers"]["sigma"], earlier["train"]["min_delta"], earlier["init_from"]
    (tmp_path / "config-1.yaml").write_text(yaml.safe_dump(earlier))
    assert repetition_of(config, stored(tmp_path, starts=2)).doubt == ""
    rounded = fix_machine_values(small_config(*BACKUPS, "cluster.tf32=true"), 1, lambda: NO_DRIVER)
    assert repetition_of(rounded, stored(tmp_path, starts=2)).doubt == "", "no GPU was there to round"
    here = machine(gpu())
    on_gpu = fix_machine_values(compose([*SMALL, *BACKUPS, "cluster.tf32=true"]).config(), 1, lambda: here)
    (tmp_path / "config-1.yaml").write_text(yaml.safe_dump(earlier | {"model": to_plain(on_gpu)["model"]}))
    doubt = repetition_of(on_gpu, stored(tmp_path, starts=2)).doubt
    assert "config-1.yaml has other cluster.gpus, cluster.tf32, cluster.device_taken. All" in doubt


def test_every_configuration_of_the_way_is_named_in_order(tmp_path: Path) -> None:
    for start, steps in ((10, 2), (9, 1)):
        (tmp_path / f"config-{start}.yaml").write_text(dump(small_config(f"train.steps={steps}")))
    doubt = repetition_of(small_config(), stored(tmp_path, starts=11)).doubt
    assert "config-9.yaml has other train.steps; config-10.yaml has other train.steps" in doubt
