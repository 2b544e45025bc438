"""Weights of a finished run: scores and predictions on one device of this machine, and initial weights of a new run."""

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoint import find, load
from runner.cli import main
from runner.config.configuration import load_stored
from runner.config.schema import Adaptation, LocalCluster
from runner.engine.run import kernel_table
from runner.errors import CheckpointError, ConfigError, ResourceError
from runner.kernels.gpu.discovery import Found
from runner.kernels.registry import Registry
from runner.training import inference
from runner.training.inference import OneDevice, answers, one_device, score
from runner.training.initial_weights import InitialWeights, initial_weights
from runner.training.run import run
from tests.gpu.gpus import Gpu
from tests.gpus import NO_DRIVER, gpu, gpu_kernels, machine
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.refusal import Capture
from tests.small_runs import composed_config, small_config, train

__all__ = ["gpu_kernels"]

SMALL_DATA = ("data.train_limit=64", "data.test_limit=40", "data.val_fraction=0.25", "train.eval_batch_size=16")


@pytest.fixture
def of_two_workers(trained: Callable[..., Path]) -> Path:
    """Return the directory of a run of two workers on the CPU. Tests must not change it."""
    two_workers = ("parallelism=sync_data", "parallelism.workers=2", "cluster.one_process=true")
    return trained(*SMALL_DATA, *two_workers)


def on(found: Found, *overrides: str, **cluster: Any) -> OneDevice:
    """Return the device on which the machine ``found`` evaluates the small network."""
    config = small_config(*SMALL_DATA, *overrides)
    return one_device(replace(config, cluster=LocalCluster(**cluster)), 2, lambda: found)


def test_inference_uses_a_gpu_if_there_is_one_whichever_device_trained(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "runner"):
        device = on(machine(gpu(4), gpu(5)), "parallelism=sync_data", "parallelism.workers=2", tf32=True)
    (used,) = device.cluster.devices
    assert (used.name, used.gpu, used.use.tf32) == ("/job:worker/task:0/device:gpu:0", 4, True)
    assert device.config.cluster.threads_per_worker == 2
    assert device.what.startswith("GPU 4: Big GPU")
    assert device.reason in caplog.text
    assert "TF32" in caplog.text
    caplog.clear()
    on(machine(gpu(), obstacle="CuPy is not installed"))
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "an idle GPU"
    elsewhere = on(NO_DRIVER)
    assert (elsewhere.what, elsewhere.cluster.devices[0].gpu) == ("CPU", None)
    assert elsewhere.reason.startswith("cluster.device=auto has no usable GPU")


@pytest.mark.parametrize(
    ("found", "overrides", "cluster", "complaint"),
    [
        (NO_DRIVER, (), {"device": "gpu"}, r"cluster\.device=gpu: expected a GPU that can be used, but there is no NV"),
        (machine(gpu()), (), {"gpus": [7]}, r"cluster\.gpus=\[7\]: there is no GPU 7; expected numbers of 0 \("),
        (machine(gpu(capability=75)), ("precision=bfloat16",), {}, r"precision=bfloat16: Big GPU.* does not"),
    ],
)
def test_a_gpu_that_is_not_available_is_refused(
    found: Found, overrides: Sequence[str], cluster: dict[str, Any], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.system.machine.cpu_flags", lambda: frozenset({"avx512_bf16"}))
    with pytest.raises(ResourceError, match=complaint):
        on(found, *overrides, **cluster)


def scores_on(device: OneDevice, folder: Path) -> dict[str, Any]:
    """Return the scores of the checkpoint of the run in ``folder``, on the data of the device's configuration."""
    data: Any = device.config.data
    return score(device, find(folder), data, data.normalisation())


@pytest.mark.parametrize(("precision", "near"), [("float32", 1e-5), ("float64", 1e-12)])
def test_a_gpu_scores_and_predicts_as_the_cpu_does(
    of_two_workers: Path, precision: str, near: float, compiled_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, registry = Gpu(lambda tf32: EmulatedRuntime(compiled_sources)).counted()
    monkeypatch.setattr(kernel_table, "load_gpu_kernels", lambda use, home: registry)
    devices = [on(found, f"precision={precision}") for found in (machine(gpu()), NO_DRIVER)]
    on_gpu, on_cpu = (scores_on(device, of_two_workers) for device in devices)
    assert set(on_gpu) == {"test", "val"}
    for split, scores in on_gpu.items():
        assert scores.metrics == pytest.approx(on_cpu[split].metrics, rel=near)
        assert np.array_equal(scores.confusion, on_cpu[split].confusion)
    inputs = np.random.default_rng(0).normal(size=(20, 1, 8, 8))
    seen, expected = (answers(device, find(of_two_workers), inputs) for device in devices)
    np.testing.assert_allclose(seen, expected, rtol=10 * near)
    assert runtime.allocated > 0, "the GPU computed"


@pytest.mark.usefixtures("gpu_kernels")
def test_a_gpu_without_memory_or_kernel_is_refused(of_two_workers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ResourceError, match=r"the run needs .* of GPU 0 .*, which has 0\.01 GiB: 1 device"):
        scores_on(on(machine(gpu(memory_bytes=10 << 20))), of_two_workers)
    monkeypatch.setattr(inference, "kernels_for", lambda devices: Registry())
    with pytest.raises(ConfigError, match=r"device=gpu: node 'eval/.*' is on a GPU, and its op"):
        scores_on(on(machine(gpu())), of_two_workers)


def test_bfloat16_needs_cpu_instructions_only_if_the_cpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.system.machine.cpu_flags", lambda: frozenset({"avx2"}))
    config = composed_config(*SMALL_DATA, "precision=bfloat16")
    assert one_device(config, 2, lambda: machine(gpu())).what.startswith("GPU 0")
    with pytest.raises(ConfigError, match="precision=bfloat16: expected a CPU with one of avx512_bf16, amx_bf16"):
        one_device(config, 2, lambda: NO_DRIVER)


@pytest.mark.usefixtures("gpu_kernels", "folder")
def test_eval_and_predict_name_the_device(
    of_two_workers: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "one_device", partial(one_device, find=lambda: machine(gpu())))
    assert main(["eval", str(of_two_workers), "--output", "out.json"]) == 0
    found = json.loads(Path("out.json").read_text())
    assert found["device"].startswith("GPU 0: Big GPU, compute capability 9.0")
    assert found["device_reason"] == "cluster.device=auto uses a GPU if there is one, and there is Big GPU"
    assert f"\ncomputed on    {found['device']}\n" in capsys.readouterr().out
    np.save("one.npy", np.zeros((1, 8, 8), np.uint8))
    assert main(["predict", str(of_two_workers), "one.npy"]) == 0
    assert f"computed on {found['device']}\n" in capsys.readouterr().err
    for verb in (["eval"], ["predict", "one.npy"]):
        assert main([verb[0], str(of_two_workers), *verb[1:], "cluster.device=cpu"]) == 0
        assert "computed on" in (reported := "".join(capsys.readouterr()))
        assert "CPU\n" in reported
    assert main(["predict", "run", "cluster.device=cpu"]) == 2
    assert "cluster.device=cpu: expected also a FILE" in capsys.readouterr().err


def test_inference_needs_no_data_of_an_adaptation(tmp_path: Path) -> None:
    absent = Adaptation(data={"name": "image_folder", "path": str(tmp_path / "none")})
    assert one_device(replace(small_config(), adapt=absent), 1, lambda: NO_DRIVER).config.adapt == Adaptation()


NORMALISED = ("model=resnet_cifar", "model.depth=8", "train.batch_size=4", "data.augment.crop_padding=0")
NAMES = ["fc1/weights", "fc1/bias", "fc2/weights", "fc2/bias"]


@pytest.fixture
def source(trained: Callable[..., Path]) -> Path:
    """Return the directory of a run of three steps with momentum. Tests must not change it."""
    return trained()


def taken(source: Path, *overrides: str) -> InitialWeights:
    weights = initial_weights(small_config(f"init_from={source}", *overrides))
    assert weights is not None
    return weights


@pytest.mark.parametrize("settings", [("optimizer=adam",), ("parallelism=async_data",), ("parallelism=hybrid",)])
def test_weights_are_loaded_but_not_slots_or_copies_of_strategies(source: Path, settings: tuple[str, ...]) -> None:
    assert initial_weights(small_config()) is None
    stored = load(source / "checkpoints" / "step-3").variables
    assert any(name.endswith("/velocity") for name in stored)
    weights = taken(source, *settings)
    assert (list(weights.values), weights.left) == (NAMES, {})
    for name, value in weights.values.items():
        np.testing.assert_array_equal(value, stored[name], strict=True)


def test_weights_that_do_not_fit_are_skipped_and_reported(source: Path) -> None:
    weights = taken(source, "model.hidden=[8,8]", "init_exclude=[fc1/b*]")
    assert list(weights.values) == ["fc1/weights"]
    assert weights.left == {
        "fc1/bias": "init_exclude has fc1/b*",
        "fc2/weights": "shape (8, 8) in the network, (8, 10) in the checkpoint",
        "fc2/bias": "shape (8,) in the network, (10,) in the checkpoint",
        "fc3/weights": "the checkpoint has no such weight",
        "fc3/bias": "the checkpoint has no such weight",
    }
    assert weights.report().splitlines() == [
        f"weights from {source}/checkpoints/step-3: 1 loaded, 5 not loaded",
        "  fc1/weights: loaded",
        *(f"  {name}: not loaded: {why}" for name, why in weights.left.items()),
    ]


def test_only_matching_weights_are_loaded_and_converted_to_the_float_type(source: Path) -> None:
    weights = taken(source, "init_include=[fc1/*,*/bias]", "precision=float64")
    assert list(weights.values) == ["fc1/weights", "fc1/bias", "fc2/bias"]
    assert weights.left == {"fc2/weights": "no pattern of init_include matches"}
    assert {value.dtype.name for value in weights.values.values()} == {"float64"}


@pytest.mark.parametrize("key", ["init_include", "init_exclude"])
def test_a_pattern_without_matching_variable_is_refused(source: Path, key: str) -> None:
    expected = rf"{key}=\['fc1/\*', 'conv\*'\]: conv\* matches no weight; the network has fc1/w"
    with pytest.raises(ConfigError, match=expected):
        taken(source, f"{key}=[fc1/*,conv*]")


def test_a_checkpoint_of_another_network_is_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"(?s)no weight fits.*conv1/weights: not loaded: the checkpoint has no such weight"
    ):
        train(tmp_path / "run", "model=lenet", f"init_from={source}", "init_include=[conv*]")
    assert not (tmp_path / "run").exists()


STILL = ("optimizer.lr=1e-12", "train.steps=1")


def test_a_run_begins_with_the_weights_of_another_without_its_momentum(source: Path, tmp_path: Path) -> None:
    held = load(source / "checkpoints" / "step-3").variables
    summary = train(tmp_path / "run", f"init_from={source}", *STILL)
    found = load(tmp_path / "run" / "checkpoints" / "step-1").variables
    for name in ("fc1/weights", "fc2/bias"):
        np.testing.assert_allclose(found[name], held[name], rtol=0, atol=1e-9)
        assert not np.allclose(found[f"{name}/velocity"], held[f"{name}/velocity"])
    assert summary.init_from == str(source / "checkpoints" / "step-3")
    assert (summary.init_taken, summary.init_left) == (NAMES, {})
    assert "4 loaded, 0 not loaded" in (tmp_path / "run" / "run.log").read_text()


def test_skipped_weights_have_their_usual_initial_value(source: Path, tmp_path: Path) -> None:
    train(tmp_path / "plain", *STILL)
    train(tmp_path / "run", f"init_from={source}", "init_include=[fc1/*]", *STILL)
    plain, found = (load(tmp_path / name / "checkpoints" / "step-1").variables for name in ("plain", "run"))
    np.testing.assert_allclose(found["fc2/weights"], plain["fc2/weights"], rtol=0, atol=1e-9)
    assert not np.allclose(found["fc1/weights"], plain["fc1/weights"])


def test_a_resumed_run_keeps_its_weights(source: Path, tmp_path: Path) -> None:
    begun = (f"init_from={source}", "schedule=constant")
    whole = train(tmp_path / "whole", *begun, "train.steps=4")
    train(tmp_path / "run", *begun, "train.steps=2")
    resumed = train(tmp_path / "run", *begun, "train.steps=4", resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.init_from == ""


def test_a_run_killed_before_its_first_checkpoint_begins_with_the_same_weights(source: Path, tmp_path: Path) -> None:
    """Before the resume, the source run writes newer checkpoints."""
    source = shutil.copytree(source, tmp_path / "source")
    uninterrupted = train(tmp_path / "run", f"init_from={source}")
    assert load_stored(tmp_path / "run" / "config.yaml").init_from == str(source / "checkpoints" / "step-3")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-3")
    train(source, "train.steps=5", resume=True)
    resumed = run(load_stored(tmp_path / "run" / "config.yaml"), tmp_path / "run", overrides=[], resume=True)
    assert resumed.weights_sha256 == uninterrupted.weights_sha256


def test_moving_averages_are_weights_too(tmp_path: Path) -> None:
    train(tmp_path / "source", *NORMALISED, "train.steps=1")
    assert any("mean" in name for name in taken(tmp_path / "source", *NORMALISED).values)
