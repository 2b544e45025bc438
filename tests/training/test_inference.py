"""A trained network on one device of this machine, a GPU if there is one."""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoint import find
from runner.cli import main
from runner.config.hydra_app import compose
from runner.config.schema import LocalCluster
from runner.engine.run import kernel_table
from runner.errors import ConfigError, ResourceError
from runner.kernels.gpu.discovery import Found
from runner.kernels.registry import Registry
from runner.training import inference
from runner.training.inference import OneDevice, one_device, probabilities, score
from runner.training.run import run
from tests.gpu.gpus import Gpu
from tests.gpus import NO_DRIVER, gpu, gpu_kernels, machine
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.small_runs import small_config

__all__ = ["gpu_kernels"]

SMALL_DATA = ("data.train_limit=64", "data.test_limit=40", "data.val_fraction=0.25", "train.eval_batch_size=16")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of two workers on the CPU."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    config = small_config(*SMALL_DATA, "parallelism=sync_data", "parallelism.workers=2", "cluster.one_process=true")
    run(config, folder, overrides=[])
    return folder


def on(found: Found, *overrides: str, **cluster: Any) -> OneDevice:
    """The device of a machine that the small network is asked on."""
    config = small_config(*SMALL_DATA, *overrides)
    return one_device(replace(config, cluster=LocalCluster(**cluster)), 2, lambda: found)


def test_inference_uses_a_gpu_if_there_is_one_whichever_device_trained(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "runner"):
        device = on(machine(gpu(4), gpu(5)), "parallelism=sync_data", "parallelism.workers=2", tf32=True)
    assert [(each.name, each.gpu, each.use.tf32) for each in device.cluster.devices] == [
        ("/job:worker/task:0/device:gpu:0", 4, True)
    ]
    assert device.config.cluster.threads_per_worker == 2
    assert device.what.startswith("GPU 4: Big GPU")
    assert device.reason in caplog.text
    assert "TF32" in caplog.text
    caplog.clear()
    on(machine(gpu(), obstacle="CuPy is not installed"))
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "an idle GPU"
    elsewhere = on(NO_DRIVER)
    assert (elsewhere.what, elsewhere.cluster.devices[0].gpu) == ("CPU", None)
    assert elsewhere.reason.startswith("cluster.device=auto finds no GPU")


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


def scores_on(device: OneDevice, trained: Path) -> dict[str, Any]:
    """Results of the run's own data."""
    data: Any = device.config.data
    return score(device, find(trained), data, data.normalisation())


@pytest.mark.parametrize(("precision", "near"), [("float32", 1e-5), ("float64", 1e-12)])
def test_a_gpu_scores_and_predicts_as_the_cpu_does(
    trained: Path, precision: str, near: float, compiled_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, registry = Gpu(lambda tf32: EmulatedRuntime(compiled_sources)).counted()
    monkeypatch.setattr(kernel_table, "load_gpu_kernels", lambda use, home: registry)
    devices = [on(found, f"precision={precision}") for found in (machine(gpu()), NO_DRIVER)]
    on_gpu, on_cpu = (scores_on(device, trained) for device in devices)
    assert set(on_gpu) == {"test", "val"}
    for split, scores in on_gpu.items():
        assert scores.loss == pytest.approx(on_cpu[split].loss, rel=near)
        assert np.array_equal(scores.confusion, on_cpu[split].confusion)
    inputs = np.random.default_rng(0).normal(size=(20, 1, 8, 8))
    seen, expected = (probabilities(device, find(trained), inputs) for device in devices)
    np.testing.assert_allclose(seen, expected, rtol=10 * near)
    assert runtime.allocated > 0, "the GPU computed"


@pytest.mark.usefixtures("gpu_kernels")
def test_a_gpu_that_cannot_hold_a_batch_or_lacks_a_kernel_is_refused_before_memory_is_allocated(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ResourceError, match=r"the run needs .* of GPU 0 .*, which has 0\.01 GiB: 1 device"):
        scores_on(on(machine(gpu(memory_bytes=10 << 20))), trained)
    monkeypatch.setattr(inference, "kernels_for", lambda devices: Registry())
    with pytest.raises(ConfigError, match=r"device=gpu: node 'eval/.*' is on a GPU, and its op"):
        scores_on(on(machine(gpu())), trained)


def test_bfloat16_needs_cpu_instructions_only_if_the_cpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.system.machine.cpu_flags", lambda: frozenset({"avx2"}))
    config = compose([*SMALL_DATA, "precision=bfloat16"]).config()
    assert one_device(config, 2, lambda: machine(gpu())).what.startswith("GPU 0")
    with pytest.raises(ConfigError, match="precision=bfloat16: expected a CPU with one of avx512_bf16, amx_bf16"):
        one_device(config, 2, lambda: NO_DRIVER)


@pytest.mark.usefixtures("gpu_kernels", "folder")
def test_both_verbs_print_the_device(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "one_device", partial(one_device, look=lambda: machine(gpu())))
    assert main(["eval", str(trained), "--output", "out.json"]) == 0
    found = json.loads(Path("out.json").read_text())
    assert found["device"].startswith("GPU 0: Big GPU, compute capability 9.0")
    assert found["device_reason"] == "cluster.device=auto takes a GPU if there is one, and there is Big GPU"
    assert f"\ncomputed on    {found['device']}\n" in capsys.readouterr().out
    np.save("one.npy", np.zeros((1, 8, 8), np.uint8))
    assert main(["predict", str(trained), "one.npy"]) == 0
    assert f"computed on {found['device']}\n" in capsys.readouterr().err
    for verb in (["eval"], ["predict", "one.npy"]):
        assert main([verb[0], str(trained), *verb[1:], "cluster.device=cpu"]) == 0
        assert "computed on" in (said := "".join(capsys.readouterr()))
        assert "CPU\n" in said
    assert main(["predict", "run", "cluster.device=cpu"]) == 2
    assert "expected a FILE besides cluster.device=cpu" in capsys.readouterr().err
