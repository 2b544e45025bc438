"""``runner resume=DIR``: the stored configuration is used; only training limits, strategy and cluster can change."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import runner
from runner.cli import main
from runner.commands.train import _continued
from runner.config.configuration import dump, fix_machine_values, load_stored
from runner.config.schema import FILLED_IN, Config
from runner.kernels.gpu.discovery import Found
from tests.fake_training import FakeTraining
from tests.gpus import gpu, machine
from tests.plugin_tables import EXAMPLES, restored_tables
from tests.refusal import Capture
from tests.small_runs import composed_config, typed


@pytest.fixture
def stored(folder: Path) -> Path:
    """Return the directory of a run of 30 epochs."""
    directory = folder / "stored run"
    directory.mkdir()
    (directory / "config.yaml").write_text(dump(composed_config("seed=7", "model=mlp")))
    return directory


def test_a_resumed_run_uses_its_stored_configuration_and_directory(fake_training: FakeTraining, stored: Path):
    assert main([f"resume={stored.name}"]) == 0
    call = fake_training.only
    assert (call.config.seed, call.config.model.name, call.config.train.epochs) == (7, "mlp", 30.0)
    assert (call.run_dir, call.resume, call.sweep, call.overrides) == (stored, True, None, [])
    assert [entry.name for entry in stored.parent.iterdir()] == [stored.name], "Hydra makes no directory"


@pytest.mark.parametrize(
    ("override", "limits"),
    [("train.epochs=40", (40.0, None)), ("train.steps=99", (None, 99)), ("train.epochs=1e2", (100.0, None))],
)
def test_limits_can_be_changed(fake_training: FakeTraining, stored: Path, override: str, limits: tuple[object, object]):
    assert main([override, f"resume={stored}"]) == 0
    train = fake_training.only.config.train
    assert (train.epochs, train.steps) == limits
    assert fake_training.only.overrides == [override]


@pytest.fixture(autouse=True)
def _six_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.commands.train.usable_cores", lambda: 6)


def store(directory: Path, config: Config) -> None:
    (directory / "config.yaml").write_text(dump(config))


def test_a_new_strategy_has_its_defaults_and_the_cores_are_divided_again(fake_training: FakeTraining, stored: Path):
    before = fix_machine_values(load_stored(stored / "config.yaml"), cores=2)
    store(stored, before)
    assert (before.parallelism.name, before.cluster.workers, before.cluster.threads_per_worker) == ("sync_data", 2, 1)
    overrides = ["parallelism.workers=3", "parallelism=hybrid", "train.steps=9"]
    assert main([f"resume={stored}", *overrides]) == 0
    config = fake_training.only.config
    assert (config.parallelism.name, config.parallelism.workers, config.parallelism.scheme) == ("hybrid", 3, "b")
    assert (config.cluster.workers, config.cluster.threads_per_worker, config.cluster.cores_per_worker) == (3, 2, 2.0)
    assert fake_training.only.overrides == overrides
    kept, expected = (dataclasses.replace(each, parallelism=0, cluster=0, train=0) for each in (config, before))
    assert kept == expected, "the computation is unchanged"


@pytest.mark.parametrize(
    ("named", "cores", "resumes", "expected"),
    [
        ("", 2, ["parallelism=hybrid", "parallelism=single"], (1, 6, 6.0)),
        ("cluster.threads_per_worker=1", 2, ["parallelism=hybrid", "parallelism=single"], (1, 1, 6.0)),
        ("cluster.cores_per_worker=2", 2, ["parallelism=hybrid", "parallelism=single"], (1, 6, 2.0)),
        ("", 2, ["parallelism=single cluster.threads_per_worker=4"], (1, 4, 6.0)),
        ("", 2, ["cluster.threads_per_worker=2", "parallelism=single"], (1, 2, 6.0)),
        ("", 8, ["train.steps=9 train.patience=4"], (2, 4, 4.0)),
    ],
)
def test_cluster_keys_set_by_the_user_are_kept_and_others_follow_a_new_strategy(
    fake_training: FakeTraining, stored: Path, named: str, cores: int, resumes: list[str], expected: tuple[float, ...]
):
    store(stored, fix_machine_values(composed_config("model=mlp", *typed(named)), cores=cores))
    for resume in resumes:  # each resume reads the configuration that the previous resume stored
        assert main([f"resume={stored}", *typed(resume)]) == 0
        store(stored, fake_training.calls[-1].config)
    cluster = fake_training.calls[-1].config.cluster
    assert (cluster.workers, cluster.threads_per_worker, cluster.cores_per_worker) == expected
    given = " ".join([named, *resumes])
    assert set(cluster.filled_in) == {name for name in FILLED_IN if f"cluster.{name}=" not in given}


def test_a_number_of_workers_that_does_not_fit_is_refused(fake_training: FakeTraining, stored: Path, capsys: Capture):
    store(stored, fix_machine_values(composed_config("model=mlp", "cluster.workers=2"), cores=2))
    assert main([f"resume={stored}", "parallelism=single"]) == 2
    assert "cluster.workers=2 and parallelism.workers=1 differ" in capsys.readouterr().err
    assert main([f"resume={stored}", "parallelism=single", "cluster.workers=1"]) == 0


def test_patience_can_be_changed_and_can_be_removed_together_with_min_delta(fake_training: FakeTraining, stored: Path):
    store(stored, composed_config("train.patience=3", "train.min_delta=0.1"))
    assert main([f"resume={stored}", "train.patience=4"]) == 0
    assert main([f"resume={stored}", "train.patience=null", "train.min_delta=0"]) == 0
    trained = [(call.config.train.patience, call.config.train.min_delta) for call in fake_training.calls]
    assert trained == [(4, 0.1), (None, 0.0)]


def test_a_run_on_a_gpu_is_resumed_without_it_on_request(fake_training: FakeTraining, stored: Path, capsys: Capture):
    store(stored, fix_machine_values(load_stored(stored / "config.yaml"), 2, lambda: machine(gpu())))
    assert main([f"resume={stored}"]) == 4
    assert "cluster.device_taken=gpu, as when the run began: expected a GPU" in capsys.readouterr().err
    assert not fake_training.calls
    assert main([f"resume={stored}", "cluster.device=cpu"]) == 0
    cluster = fake_training.only.config.cluster
    assert (cluster.device, cluster.device_taken, cluster.gpus) == ("cpu", "cpu", None)


def gpus_of_resumed(config: Config, found: Found, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> Any:
    """Return the device and the GPUs of a run that is resumed on a machine with the GPUs ``found``."""
    filled = "runner.commands.train.fix_machine_values"
    monkeypatch.setattr(filled, lambda config, cores: fix_machine_values(config, 2, lambda: found))
    cluster = _continued(config, overrides).cluster
    return cluster.device_taken, cluster.gpus


def test_a_run_of_an_earlier_version_stays_on_the_cpu_by_default(stored: Path, monkeypatch: pytest.MonkeyPatch):
    plain = yaml.safe_load((stored / "config.yaml").read_text())
    for key in ("device", "device_taken", "server_device", "gpus", "one_process", "tf32", "compare_plans"):
        del plain["cluster"][key]  # keys that the earlier version did not have
    (stored / "config.yaml").write_text(yaml.safe_dump(plain))
    resumed = partial(gpus_of_resumed, load_stored(stored / "config.yaml"), machine(gpu(0), gpu(1)), monkeypatch)
    assert resumed("train.steps=9") == resumed("parallelism.workers=3") == ("cpu", None)
    assert resumed("cluster.device=auto") == resumed("cluster=local") == ("gpu", [0, 1])
    assert resumed("cluster.device=gpu", "cluster.gpus=[1,1]") == ("gpu", [1, 1])


def test_the_gpus_are_assigned_again_for_a_new_strategy(stored: Path, monkeypatch: pytest.MonkeyPatch):
    here = machine(gpu(0), gpu(1), gpu(2))
    config = fix_machine_values(load_stored(stored / "config.yaml"), 2, lambda: here)
    resumed = partial(gpus_of_resumed, config, here, monkeypatch)
    assert config.cluster.gpus == [0, 1]
    assert resumed("parallelism.workers=3") == ("gpu", [0, 1, 2])
    assert resumed("train.steps=9") == ("gpu", [0, 1])
    assert resumed("cluster.device=gpu", "cluster.gpus=[2,2]") == ("gpu", [2, 2])


def test_a_run_is_resumed_with_the_strategy_of_a_plugin(fake_training: FakeTraining, stored: Path):
    with restored_tables():
        strategy = ["--plugin", str(EXAMPLES / "own_strategy" / "local_sgd.py"), "parallelism=local_sgd"]
        assert main([*strategy, f"resume={stored}", "parallelism.workers=3"]) == 0
    assert fake_training.only.config.parallelism.name == "local_sgd"
    assert fake_training.only.config.parallelism.workers == 3


def test_a_run_is_resumed_from_python(fake_training: FakeTraining, stored: Path):
    assert runner.run([f"resume={stored}"]).summary.status == "finished"
    assert fake_training.only.resume


def test_resume_null_starts_a_new_run(fake_training: FakeTraining):
    assert main(["resume=null"]) == 0
    assert not fake_training.only.resume


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["optimizer.lr=0.1"],
            "optimizer.lr=0.1: a resumed run uses its stored configuration; besides resume=DIR only train.epochs, "
            "train.steps, train.patience, train.min_delta, train.microbatches, "
            "train.restarts, callbacks, parallelism and cluster may be given",
        ),
        (["parallelisms=single"], "parallelisms=single: a resumed run uses its stored configuration"),
        (["parallelism=none"], "parallelism=none: no such option"),
        (["parallelism.depth=3"], "parallelism.depth: no such key"),
        (["parallelism.a.b=3"], "parallelism.a: no such key"),
        (["cluster.hardware.step_us=3"], "cluster.hardware.step_us=3: there is no section cluster.hardware"),
        (["parallelism=single", "parallelism.workers=2"], "parallelism.workers=2 with parallelism=single"),
        (["model=lenet"], "model=lenet: a resumed run uses its stored configuration"),
        (["-m"], "-m: a resumed run uses its stored configuration"),
        (["+train.steps=3"], "+train.steps=3: a resumed run uses its stored configuration"),
        (["resume=other"], "resume is given 2 times"),
        (["train.steps=few"], "train.steps: Value 'few' of type 'str' could not be converted to Integer"),
        (["train.steps=["], "train.steps=[: expected a value in YAML"),
        (["train.steps=0"], "train.steps=0: expected 1 to 1000000000"),
        (["train.steps=5", "train.epochs=5"], "expected exactly one; set the other"),
    ],
)
def test_other_arguments_are_refused_by_name(
    fake_training: FakeTraining, stored: Path, capsys: Capture, arguments: list[str], complaint: str
):
    assert main([f"resume={stored}", *arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert not fake_training.calls


@pytest.mark.parametrize("directory", ["absent", "."])
def test_a_directory_without_a_run_is_refused(fake_training: FakeTraining, capsys: Capture, directory: str):
    assert main([f"resume={directory}"]) == 2
    assert "holds no config.yaml: not the directory of a run" in capsys.readouterr().err


def test_a_stored_configuration_executes_no_code(fake_training: FakeTraining, stored: Path, capsys: Capture):
    with (stored / "config.yaml").open("a") as file:
        file.write("_target_: os.system\n")
    assert main([f"resume={stored}"]) == 2
    assert "_target_: no such key" in capsys.readouterr().err
    assert not fake_training.calls
