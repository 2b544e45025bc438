"""Placements of layers: stored placements, measured costs, and steps compared with those of other strategies."""

import json
from pathlib import Path
from typing import Any

import pytest

from runner.commands.explain import explain
from runner.engine.graph import worker_device, worker_task
from runner.errors import ConfigError, SecurityError
from runner.training.build import build
from runner.training.comparison import predicted_step_s, verdict
from runner.training.experiment import Experiment
from runner.training.placement import Placement, layer_device_text, placement_text, read_layers
from tests.small_runs import small_config

MODEL = ("parallelism=model", "parallelism.workers=3")
LAYERS = {"flatten": 1, "fc1": 2, "relu1": 0, "fc2": 1, "loss": 1}
"""Layer of the small model -> worker."""


def experiment(*overrides: str) -> Experiment:
    return build(small_config(*MODEL, *overrides))


def placement_of(built: Experiment) -> Placement:
    assert built.placed is not None
    return built.placed.placement


def stored(path: Path, version: int = 1, **changes: object) -> Path:
    """Write a placement as a run does. changes: layer -> device; None omits the layer."""
    layers = {layer: worker_device(k) for layer, k in LAYERS.items()}
    Placement(layers, (), "given", {"given": 1.0}).write(path)
    document = json.loads(path.read_text())
    document["layers"] = {layer: each for layer, each in {**layers, **changes}.items() if each is not None}
    path.write_text(json.dumps(document | {"version": version}))
    return path


def test_a_stored_placement_is_used_unchanged(tmp_path: Path) -> None:
    path = stored(tmp_path / "placement.json")
    placement = placement_of(experiment(f"parallelism.placement={path}"))
    assert placement.layers == {layer: worker_device(k) for layer, k in LAYERS.items()}
    assert placement.found_by == "given"
    resumed = build(small_config(*MODEL, "parallelism.costs=gone.json"), kept_placement=path)
    assert placement_of(resumed).layers["fc1"] == worker_device(2)


def test_shards_of_a_layer_are_kept_with_their_workers(tmp_path: Path) -> None:
    cut = "parallelism.shard={fc1: column, fc2: row}"
    found = experiment(cut)
    shards = {name: device for name, device in placement_of(found).layers.items() if "/" in name}
    assert shards == {f"{layer}/shard_{j}": worker_device(j) for layer in ("fc1", "relu1", "fc2") for j in range(3)}
    placement = placement_of(found)
    assert layer_device_text(placement, "fc1") == "split over 3 devices"
    assert layer_device_text(placement, "fc2") == f"split over 3 devices, {placement.layers['loss']}"
    assert layer_device_text(placement, "flatten") == placement.layers["flatten"]
    assert layer_device_text(placement, "fc9") == "-"
    placement.write(tmp_path / "placement.json")
    assert list(read_layers(tmp_path / "placement.json").items()) == list(placement.layers.items())
    again = experiment(cut, f"parallelism.placement={tmp_path / 'placement.json'}")
    assert again.program.graph.nodes == found.program.graph.nodes
    with pytest.raises(ConfigError, match="unknown layers fc1/shard_0"):
        experiment(f"parallelism.placement={tmp_path / 'placement.json'}")


def test_the_text_of_a_placement_lists_layers_and_idle_devices() -> None:
    text = placement_text(placement_of(experiment("parallelism.constraints={*: 1}")))
    layers = ("no layer", "flatten, fc1, relu1, fc2, loss", "no layer")
    assert text.splitlines()[1:] == [f"  {worker_device(number)}: {named}" for number, named in enumerate(layers)]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"fc2": None}, "does not fit: missing layers fc2. The layers are flatten, fc1, relu1, fc2, loss; the"),
        ({"fc9": worker_device(0)}, "does not fit: unknown layers fc9."),
        ({"fc1": worker_device(3)}, f"does not fit: unknown devices {worker_task(3)}."),
        ({"fc1": "worker 0"}, "does not fit: unknown devices worker 0. The layers are flatten, fc1, relu1, f"),
        ({"version": 2}, "is damaged: version: 2, expected 1; expected the placement.json of a run"),
        ({"fc1": 2}, "is damaged: layers[fc1]: 2, expected text; expected the placement.json"),
    ],
)
def test_a_placement_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    path = stored(tmp_path / "placement.json", **changes)
    with pytest.raises(ConfigError) as caught:
        experiment(f"parallelism.placement={path}")
    assert f"parallelism.placement={path}" in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("key", ["placement", "costs"])
def test_a_missing_file_and_one_without_a_json_object_are_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "file.json"
    for content in ("", "[]", "[" * 100_000):
        path.write_text(content)
        with pytest.raises(ConfigError, match=r"is damaged: .*; expected the (placement|trace_summary)\.json of a run"):
            experiment(f"parallelism.{key}={path}")
    with pytest.raises(ConfigError, match=f"parallelism.{key}=.*: cannot be read: No such file"):
        experiment(f"parallelism.{key}={tmp_path / 'none.json'}")
    (tmp_path / "link.json").symlink_to(tmp_path / "none.json")
    with pytest.raises(SecurityError, match="is a symbolic link"):
        experiment(f"parallelism.{key}={tmp_path / 'link.json'}")


@pytest.mark.parametrize(
    ("recorded", "complaint"),
    [
        ({}, " is damaged: missing ['node_ns'], expected the fields node_ns"),
        ({"node_ns": {"a": -1}}, " is damaged: node_ns[a]: -1, expected a finite number from 0"),
        ({"node_ns": {"a": True}}, " is damaged: node_ns[a]: True"),
        ({"node_ns": {"a": float("nan")}}, " is damaged: node_ns[a]: nan"),
        ({"node_ns": {"a": 1}}, ": found durations of 0 of "),
    ],
)
def test_costs_that_do_not_fit_are_refused(tmp_path: Path, recorded: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "trace_summary.json"
    path.write_text(json.dumps(recorded))
    with pytest.raises(ConfigError) as caught:
        experiment(f"parallelism.costs={path}")
    assert f"parallelism.costs={path}{complaint}" in str(caught.value)


SPLIT = ("parallelism=model", "parallelism.constraints={fc1: 0, fc2: 1}")


def test_the_verdict_names_the_faster_strategy() -> None:
    assert verdict({"model": 4e-3, "single": 1e-3, "sync_data": 2e-3}, "measured") == (
        "model takes 4.00 times as long as single, as measured (model 4.000 ms, single 1.000 ms, sync_data 2.000 ms)"
    )
    assert verdict({"model": 1e-3, "single": 1e-3}, "predicted").startswith(
        "model is the fastest strategy, as predicted (model 1.000 ms"
    )


def test_the_prediction_for_one_device_equals_single_on_as_many_cores() -> None:
    predicted = predicted_step_s(build(small_config("parallelism=model", "parallelism.workers=1")))
    assert predicted["model"] == pytest.approx(predicted["single"])
    assert list(predicted) == ["model", "single", "sync_data"]


def test_a_forced_split_of_a_small_network_is_slower_and_reported() -> None:
    predicted = predicted_step_s(build(small_config(*SPLIT)))
    assert predicted["model"] > predicted["single"] + 2 * 5e-4
    text = explain(small_config(*SPLIT))
    assert "times as long as single, as predicted by the cost model (model " in text
    assert "strategy   predicted ms per step" in text
    assert any(line.startswith("fc2") and line.endswith(worker_device(1)) for line in text.splitlines())


def test_measured_costs_are_those_of_all_strategies_that_are_compared(tmp_path: Path) -> None:
    everything = ("parallelism=model", "parallelism.constraints={*: 0}")
    built = build(small_config(*everything))
    path = tmp_path / "trace_summary.json"
    path.write_text(json.dumps({"node_ns": dict.fromkeys(built.program.graph.nodes, 1_000_000)}))
    predicted = predicted_step_s(build(small_config(*everything, f"parallelism.costs={path}")))
    assert predicted["model"] == pytest.approx(predicted["single"])
    # Every predicted step is longer than three successive nodes, each of which takes a millisecond.
    assert min(predicted.values()) > 3e-3 > placement_of(built).step_s


def test_data_parallelism_is_left_out_if_a_worker_has_no_example() -> None:
    config = small_config("parallelism=model", "parallelism.workers=4", "train.batch_size=3")
    assert list(predicted_step_s(build(config))) == ["model", "single"]
