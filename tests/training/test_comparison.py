"""A placement compared with one device and with data parallelism: predicted and measured step times."""

import json
from pathlib import Path

import pytest

from runner.commands.explain import explain
from runner.records.run_directory import RunDirectory
from runner.training.build import build
from runner.training.comparison import measured_step_s, predicted_step_s, verdict
from tests.small_runs import small_config

SPLIT = ("parallelism=model", "parallelism.constraints={fc1: 0, fc2: 1}")


def test_the_verdict_names_the_faster_strategy() -> None:
    assert verdict({"model": 4e-3, "single": 1e-3, "sync_data": 2e-3}, "measured") == (
        "model is slower, as measured: single takes 25% of its step "
        "(model 4.000 ms, single 1.000 ms, sync_data 2.000 ms)"
    )
    assert verdict({"model": 1e-3, "single": 1e-3}, "predicted").startswith(
        "model is not slower than the others, as predicted (model 1.000 ms"
    )


def test_the_prediction_for_one_device_equals_single() -> None:
    """On as many cores."""
    predicted = predicted_step_s(build(small_config("parallelism=model", "parallelism.workers=1")))
    assert predicted["model"] == pytest.approx(predicted["single"])
    assert list(predicted) == ["model", "single", "sync_data"]


def test_a_forced_split_of_a_small_network_is_slower_and_reported() -> None:
    predicted = predicted_step_s(build(small_config(*SPLIT)))
    assert predicted["model"] > predicted["single"] + 2 * 5e-4
    text = explain(small_config(*SPLIT))
    assert "model is slower, as predicted by the cost model: single takes" in text
    assert "strategy   predicted ms per step" in text
    assert any(
        line.startswith("fc2") and line.endswith("/job:worker/task:1/device:cpu:0") for line in text.splitlines()
    )


def test_measured_costs_are_those_of_all_that_is_compared(tmp_path: Path) -> None:
    everything = ("parallelism=model", "parallelism.constraints={*: 0}")
    nodes = build(small_config(*everything)).program.graph.nodes
    path = tmp_path / "trace_summary.json"
    path.write_text(json.dumps({"node_ns": dict.fromkeys(nodes, 1_000_000)}))
    predicted = predicted_step_s(build(small_config(*everything, f"parallelism.costs={path}")))
    assert predicted["model"] == pytest.approx(predicted["single"])
    assert min(predicted.values()) > 3e-3


def test_data_parallelism_is_left_out_if_a_worker_has_no_example() -> None:
    config = small_config("parallelism=model", "parallelism.workers=4", "train.batch_size=3")
    assert list(predicted_step_s(build(config))) == ["model", "single"]


def test_steps_are_measured_on_sessions_of_all_three(tmp_path: Path) -> None:
    experiment = build(small_config(*SPLIT))
    with RunDirectory.open(tmp_path / "run", resume=False) as directory:
        measured = measured_step_s(experiment, directory, steps=2)
    assert list(measured) == ["model", "single", "sync_data"]
    assert all(seconds > 0 for seconds in measured.values())
