"""Benchmarks on a GPU: order and time of the measurements, their store, their tables, and the measured networks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.cases import CASES
from benchmarks.experiments import FixedBatch, configuration
from benchmarks.gpu import command, networks
from benchmarks.gpu.command import Options, gpu_facts, parse, passes
from benchmarks.gpu.deadline import SHORTEST_S, Deadline
from benchmarks.gpu.networks import GPU_CASES, model_of, workload_of
from benchmarks.gpu.resident import LOAD, resident_single
from benchmarks.gpu.store import Store, read_store
from benchmarks.gpu.table import NOT_RUN, page
from benchmarks.network import random_batch
from benchmarks.process import SubjectError
from benchmarks.timed_single import TimedSingle
from runner.engine.compile.program import Program
from runner.engine.graph import local_cluster
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import scalar
from runner.errors import ResourceError
from runner.kernels.registry import Registry
from tests.benchmarks.made import RATES, cells, gpu_subject, measured


class Clock:
    """A clock that is set by hand, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_remaining_time_excludes_the_reserved_time() -> None:
    clock = Clock()
    deadline = Deadline(60, clock)
    clock.now += 20
    with deadline.keeping(15):
        assert (deadline.remaining_s(), deadline.patience_s()) == (25, 25)
        clock.now += 30
        assert (deadline.remaining_s(), deadline.patience_s()) == (-5, SHORTEST_S)
    assert deadline.patience_s() == 10


def test_modes_without_compilation_are_measured_first() -> None:
    options = parse(["alexnet", "vgg_a", "--precision", "float32,tf32"])
    quick, every = ("channels-last", "graph"), ("channels-last", "graph", "reduce-overhead", "max-autotune")
    keys = [("alexnet", "float32"), ("vgg_a", "float32"), ("alexnet", "tf32"), ("vgg_a", "tf32")]
    assert list(passes(options)) == [(*key, modes) for modes in (quick, every) for key in keys]
    assert list(passes(parse(["alexnet", "--precision", "tf32", "--modes", "none"]))) == [("alexnet", "tf32", ())]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["caffenet"], "CASE 'caffenet': expected some of alexnet, vgg_a"),
        (["--modes", "eager"], "--modes 'eager': expected some of channels-last, graph"),
        (["--precision", "float16"], "--precision 'float16': expected some of float32, tf32, bfloat16"),
    ],
)
def test_unknown_values_are_refused(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert complaint in capsys.readouterr().err


def nvidia_smi(folder: Path, text: str, code: int) -> None:
    """Write an executable ``nvidia-smi`` that prints a text and exits with a code."""
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
    script.chmod(0o755)


def test_the_facts_of_a_gpu_are_those_that_its_driver_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    nvidia_smi(tmp_path, "NVIDIA H100 80GB HBM3, 580.159.04, 81559 MiB", 0)
    expected = {"device": "NVIDIA H100 80GB HBM3", "driver": "580.159.04", "memory": "81559 MiB"}
    assert gpu_facts("cuda") == expected


@pytest.mark.parametrize("broken", [False, True])
def test_without_a_gpu_the_command_reports_the_reason(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if broken:
        nvidia_smi(tmp_path, "No devices were found", 6)
    assert main(["gpu", "--output", str(tmp_path / "results")]) == 1
    expected = "nvidia-smi reports No devices were found" if broken else "nvidia-smi was not found"
    assert f"error: no NVIDIA GPU: {expected}" in capsys.readouterr().err


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, tuple[str, ...]]]:
    """Replace measurements by fakes that take 100 s and fail for VGG-A; return the list of measured cases."""
    clock, seen = Clock(), []

    def measure(case: Any, precision: str, modes: Sequence[str], *_: object) -> Any:
        clock.now += 100
        seen.append((case.name, precision, tuple(modes)))
        if case.name == "vgg_a":
            raise SubjectError("no answer within 10 s")
        return measured(gpu_subject("runner", 9), case=case.name, precision=precision).result

    def rates(settings: object, precisions: Sequence[str], *_: object) -> Any:
        return dict.fromkeys(precisions, RATES)

    monkeypatch.setattr(command, "Deadline", lambda seconds: Deadline(seconds, clock))
    monkeypatch.setattr(command, "gpu_facts", lambda device: {"device": "GPU 1 (80 GB)"})
    monkeypatch.setattr(command, "prepare", lambda case, folder: folder.mkdir())
    monkeypatch.setattr(command, "measure_rates", rates)
    monkeypatch.setattr(command, "measure", measure)
    return seen


def test_measurements_end_in_time_and_the_rest_is_reported(
    played: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--precision", "float32", "--seconds", "250", "--output", str(tmp_path)]
    assert command.main(["alexnet", "vgg_a", "googlenet", "resnet110", *options]) == 0
    assert [case for case, _, _ in played] == ["alexnet", "vgg_a", "googlenet"]
    captured = capsys.readouterr()
    assert "vgg_a, float32: no answer within 10 s" in captured.err
    assert "resnet110, float32, channels-last, graph: not run, the time is up" in captured.err
    assert captured.out == (tmp_path / "gpu-1-80-gb.md").read_text() + "\n"


def test_a_second_call_adds_to_the_results_of_the_first(played: list[Any], tmp_path: Path) -> None:
    for case in ("alexnet", "googlenet"):
        options = ["--precision", "tf32", "--modes", "none", "--output", str(tmp_path)]
        assert command.main([case, *options]) == 0
    document = json.loads((tmp_path / "gpu-1-80-gb.json").read_text())
    assert [each["result"]["case"] for each in document["results"]] == ["alexnet", "googlenet"]


@pytest.mark.usefixtures("played")
def test_a_call_that_measures_nothing_fails(tmp_path: Path) -> None:
    assert command.main(["vgg_a", "--output", str(tmp_path)]) == 1


def test_options_have_defaults() -> None:
    """By default all networks are measured, the most important first."""
    options: Options = parse([])
    assert options.cases == ("alexnet", "vgg_a", "googlenet", "resnet110", "overfeat")
    assert (options.settings.device, options.output.name, options.seconds) == ("cuda", "results", 500.0)
    assert [each.settings.compare_plans for each in (options, parse(["--compare-plans"]))] == [False, True]


FACTS = {"device": "GPU 1", "driver": "1.0"}
FAILED = gpu_subject("runner", 1, failure="ended with code 1", seconds={})


def test_written_results_are_read_again_for_the_same_gpu(tmp_path: Path) -> None:
    store = Store(FACTS)
    assert read_store(tmp_path / "gpu.json", FACTS) == store, "the file does not exist yet"
    store.add(measured(gpu_subject("runner", 9), gpu_subject("torch-graph", 10)))
    store.add(measured(gpu_subject("runner", 5), precision="tf32"))
    store.write(tmp_path / "gpu.json")
    assert read_store(tmp_path / "gpu.json", FACTS) == store
    with pytest.raises(ValueError, match="results of GPU 1, expected GPU 2; choose another folder with --output"):
        read_store(tmp_path / "gpu.json", {"device": "GPU 2"})


def test_a_newer_result_replaces_an_older_one_unless_it_failed() -> None:
    store, older, newer = Store(FACTS), measured(gpu_subject("runner", 9)), measured(gpu_subject("runner", 8))
    for each in (measured(FAILED), older, measured(FAILED), newer):
        store.add(each)
    assert list(store.results.values()) == [newer]


def text_of(*results: object) -> str:
    store = Store(FACTS)
    for each in results:
        store.add(each)  # type: ignore[arg-type]
    return page(store, "python -m benchmarks gpu")


def test_missing_results_are_shown_as_not_run() -> None:
    text = text_of()
    assert cells(text, "alexnet, 128", "float32") == ["alexnet, 128", "float32", *[NOT_RUN] * 10]
    assert cells(text, "runner, this GPU") == ["runner, this GPU", *[NOT_RUN] * 4]
    assert cells(text, "Torch, Titan X, 2016") == ["Torch, Titan X, 2016", "81", "529", "470", "268"]
    assert "smoke" not in text


def test_runner_is_compared_with_the_best_mode_with_the_same_losses() -> None:
    peers = [gpu_subject("torch-graph", 25), gpu_subject("torch-channels-last", 10, losses=(3.0, 3.0, 3.0))]
    text = text_of(measured(gpu_subject("runner", 20), *peers))
    expected = ["20", "torch-graph", "25", "0.80", "1 of 4", "0.51", "1", "0.50", "100", "100"]
    assert cells(text, "alexnet, 128", "float32") == ["alexnet, 128", "float32", *expected]
    assert cells(text, "runner, this GPU") == ["runner, this GPU", "16", *[NOT_RUN] * 3]
    assert cells(text, "best mode of PyTorch, this GPU")[1] == "20"
    assert "different computation: 3.0000, 3.0000, 3.0000" in text
    assert cells(text, "torch-max-autotune")[1] == NOT_RUN
    assert "Rates: 2.0 TFLOP/s, 2,000 GB/s read and written. Commit abc, 2026-11-22." in text


def test_a_failure_is_shown_with_its_reason_and_utilisation_needs_rates() -> None:
    slow = gpu_subject("torch-max-autotune", 1, failure="no answer within 20 s", seconds={})
    unknown = type(RATES)({}, 0.0)
    text = text_of(measured(gpu_subject("runner", 20), slow, rates=unknown))
    assert cells(text, "torch-max-autotune")[1] == f"{NOT_RUN}: no answer within 20 s"
    assert cells(text, "alexnet, 128", "float32")[3:7] == [NOT_RUN, NOT_RUN, NOT_RUN, "0 of 4"]
    assert f"Rates: {NOT_RUN}." in text


@pytest.mark.parametrize("name", ["alexnet", "resnet1001", "inception_v3", "mlp", "smoke"])
def test_a_model_equals_the_configured_model(name: str) -> None:
    overrides = CASES[name].model
    config = configuration([*overrides, "data=synthetic", "tracking=none"])
    assert model_of(overrides) == config.model  # type: ignore[attr-defined]


def test_batches_are_those_of_convnet_benchmarks() -> None:
    batches = {name: case.batch for name, case in GPU_CASES.items() if name != "smoke"}
    assert batches == {"alexnet": 128, "vgg_a": 64, "googlenet": 128, "resnet110": 128, "overfeat": 128}


def test_only_bfloat16_computes_in_bfloat16() -> None:
    dtypes = {
        precision: workload_of(GPU_CASES["smoke"], precision).dtype for precision in ("float32", "tf32", "bfloat16")
    }
    assert dtypes == {"float32": "float32", "tf32": "float32", "bfloat16": "bfloat16"}


def test_overrides_of_keys_outside_model_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected model=PRESET, then model\.KEY=VALUE"):
        model_of(["model=lenet", "optimizer.lr=1"])


CASE = GPU_CASES["smoke"]


def losses(program: Program, registry: Registry, *, load: bool) -> list[float]:
    """Return the losses of three training steps and of a gradient computation after them. load: feed a batch once."""
    x, y = random_batch(CASE.batch, CASE.shape, CASE.classes)
    batch = {"x": x, "y": y, "index": np.arange(len(y)), "mask": np.ones(len(y), np.float32)}
    session = LocalSession(program, local_cluster(1), registry, None if load else FixedBatch(batch))
    session.run("init")
    if load:
        session.run(LOAD, feeds=batch)
    feeds = {"step": scalar(0, "int64"), "learning_rate": scalar(CASE.learning_rate, "float32")}
    return [
        float(session.run(name, step=0, feeds={key: feeds[key] for key in program.clients[name].feeds})["loss"])
        for name in ("train", "train", "train", "gradients")
    ]


def test_a_problem_that_could_not_be_prepared_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "LocalSession", Mock(side_effect=ResourceError("no memory")))
    with pytest.raises(ResourceError):
        networks.prepare(CASE, tmp_path / "smoke")
    assert not (tmp_path / "smoke").exists()


def test_steps_on_a_resident_batch_equal_steps_with_a_fed_batch(registry: Registry) -> None:
    workload = workload_of(CASE, "float32")
    resident = resident_single(workload)
    fed = losses(TimedSingle().build(workload), registry, load=False)
    assert losses(resident, registry, load=True) == fed
    assert fed[0] > fed[1] > fed[2] > fed[3]
