"""The command: the order of what is measured, the time it takes, and what it says where there is no GPU."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.gpu import command
from benchmarks.gpu.command import Options, gpu_facts, parse, passes
from benchmarks.gpu.deadline import SHORTEST_S, Deadline
from benchmarks.process import SubjectError
from tests.benchmarks.gpu.made import RATES, measured, subject


class Clock:
    """Seconds by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_passes_and_some_of_it_is_kept() -> None:
    clock = Clock()
    deadline = Deadline(60, clock)
    clock.now += 20
    with deadline.keeping(15):
        assert (deadline.remaining_s(), deadline.patience_s()) == (25, 25)
        clock.now += 30
        assert (deadline.remaining_s(), deadline.patience_s()) == (-5, SHORTEST_S)
    assert deadline.patience_s() == 10


def test_what_starts_at_once_comes_before_what_is_compiled() -> None:
    options = parse(["alexnet", "vgg_a", "--precision", "float32,tf32"])
    quick, every = ("channels-last", "graph"), ("channels-last", "graph", "reduce-overhead", "max-autotune")
    keys = [("alexnet", "float32"), ("vgg_a", "float32"), ("alexnet", "tf32"), ("vgg_a", "tf32")]
    assert list(passes(options)) == [(*key, modes) for modes in (quick, every) for key in keys]
    assert list(passes(parse(["alexnet", "--precision", "tf32", "--modes", "none"]))) == [("alexnet", "tf32", ())]


def test_plans_are_compared_where_that_is_asked_for() -> None:
    assert [parse(arguments).settings.compare_plans for arguments in ([], ["--compare-plans"])] == [False, True]


def test_all_networks_are_measured_in_the_order_of_their_importance() -> None:
    assert parse([]).cases == ("alexnet", "vgg_a", "googlenet", "resnet110", "overfeat")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["caffenet"], "CASE 'caffenet': expected some of alexnet, vgg_a"),
        (["--modes", "eager"], "--modes 'eager': expected some of channels-last, graph"),
        (["--precision", "float16"], "--precision 'float16': expected some of float32, tf32, bfloat16"),
    ],
)
def test_what_is_not_known_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert said in capsys.readouterr().err


def nvidia_smi(folder: Path, text: str, code: int) -> None:
    """Put a program of that name, which says so and ends so, into a folder."""
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
    script.chmod(0o755)


def test_a_gpu_is_known_by_what_its_driver_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    nvidia_smi(tmp_path, "NVIDIA H100 80GB HBM3, 580.159.04, 81559 MiB", 0)
    expected = {"device": "NVIDIA H100 80GB HBM3", "driver": "580.159.04", "memory": "81559 MiB"}
    assert gpu_facts("cuda") == expected


@pytest.mark.parametrize("broken", [False, True])
def test_without_a_gpu_the_command_says_so(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if broken:
        nvidia_smi(tmp_path, "No devices were found", 6)
    assert main(["gpu", "--output", str(tmp_path / "results")]) == 1
    expected = "nvidia-smi says No devices were found" if broken else "nvidia-smi is not there"
    assert f"error: no NVIDIA GPU: {expected}" in capsys.readouterr().err


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, tuple[str, ...]]]:
    """Measurements of 100 s each; that of VGG-A fails."""
    clock, seen = Clock(), []

    def measure(case: Any, precision: str, modes: Sequence[str], *_: object) -> Any:
        clock.now += 100
        seen.append((case.name, precision, tuple(modes)))
        if case.name == "vgg_a":
            raise SubjectError("no answer within 10 s")
        return measured(subject("runner", 9), case=case.name, precision=precision).result

    def rates(settings: object, precisions: Sequence[str], *_: object) -> Any:
        return dict.fromkeys(precisions, RATES)

    monkeypatch.setattr(command, "Deadline", lambda seconds: Deadline(seconds, clock))
    monkeypatch.setattr(command, "gpu_facts", lambda device: {"device": "GPU 1 (80 GB)"})
    monkeypatch.setattr(command, "prepare", lambda case, folder: folder.mkdir())
    monkeypatch.setattr(command, "measure_rates", rates)
    monkeypatch.setattr(command, "measure", measure)
    return seen


def test_it_ends_in_time_and_says_what_was_not_run(
    played: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--precision", "float32", "--seconds", "250", "--output", str(tmp_path)]
    assert command.main(["alexnet", "vgg_a", "googlenet", "resnet110", *options]) == 0
    assert [case for case, _, _ in played] == ["alexnet", "vgg_a", "googlenet"]
    captured = capsys.readouterr()
    assert "vgg_a, float32: no answer within 10 s" in captured.err
    assert "resnet110, float32, channels-last, graph: not run, the time is up" in captured.err
    assert captured.out == (tmp_path / "gpu-1-80-gb.md").read_text() + "\n"


def test_a_second_call_adds_to_what_the_first_found(played: list[Any], tmp_path: Path) -> None:
    for case in ("alexnet", "googlenet"):
        options = ["--precision", "tf32", "--modes", "none", "--output", str(tmp_path)]
        assert command.main([case, *options]) == 0
    document = json.loads((tmp_path / "gpu-1-80-gb.json").read_text())
    assert [each["result"]["case"] for each in document["results"]] == ["alexnet", "googlenet"]


@pytest.mark.usefixtures("played")
def test_nothing_measured_is_a_failure(tmp_path: Path) -> None:
    assert command.main(["vgg_a", "--output", str(tmp_path)]) == 1


def test_options_have_defaults() -> None:
    options: Options = parse([])
    assert (options.settings.device, options.output.name, options.seconds) == ("cuda", "results", 500.0)
