"""placement.json and measured costs: one run writes them, another reads them, and unfitting files are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.engine.graph.device import worker_device, worker_task
from runner.errors import ConfigError, SecurityError
from runner.training.build import build
from runner.training.experiment import Experiment
from runner.training.placement import Placement, place_text, placement_text, read_layers
from tests.small_runs import small_config

MODEL = ("parallelism=model", "parallelism.workers=3")
LAYERS = {"flatten": 1, "fc1": 2, "relu1": 0, "fc2": 1, "loss": 1}
"""Of the small model, whatever makes sense."""


def experiment(*overrides: str) -> Experiment:
    return build(small_config(*MODEL, *overrides))


def placement_of(built: Experiment) -> Placement:
    assert built.placed is not None
    return built.placed.placement


def stored(path: Path, change: Callable[[dict[str, Any]], None] = lambda document: None) -> Path:
    """A placement as written by a run, changed."""
    layers = {layer: worker_device(k) for layer, k in LAYERS.items()}
    Placement(layers, (), "given", {"given": 1.0}).write(path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


def test_a_stored_placement_is_used_unchanged(tmp_path: Path) -> None:
    path = stored(tmp_path / "placement.json")
    placement = placement_of(experiment(f"parallelism.placement={path}"))
    assert placement.layers == {layer: worker_device(k) for layer, k in LAYERS.items()}
    assert placement.found_by == "given"


def test_a_placement_can_be_written_and_read(tmp_path: Path) -> None:
    found = experiment("parallelism.constraints={fc1: 2}")
    placement_of(found).write(tmp_path / "placement.json")
    again = experiment(f"parallelism.placement={tmp_path / 'placement.json'}")
    assert again.program.graph.nodes == found.program.graph.nodes
    assert list(read_layers(tmp_path / "placement.json").items()) == list(placement_of(found).layers.items())


def test_shards_of_a_layer_are_kept_with_their_workers(tmp_path: Path) -> None:
    cut = "parallelism.shard={fc1: column, fc2: row}"
    found = experiment(cut)
    shards = {name: device for name, device in placement_of(found).layers.items() if "/" in name}
    assert shards == {f"{layer}/shard_{j}": worker_device(j) for layer in ("fc1", "relu1", "fc2") for j in range(3)}
    assert place_text(placement_of(found), "fc1") == "cut over 3 devices"
    assert place_text(placement_of(found), "fc2") == f"cut over 3 devices, {placement_of(found).layers['loss']}"
    assert place_text(placement_of(found), "flatten") == placement_of(found).layers["flatten"]
    assert place_text(placement_of(found), "fc9") == "-"
    placement_of(found).write(tmp_path / "placement.json")
    again = experiment(cut, f"parallelism.placement={tmp_path / 'placement.json'}")
    assert again.program.graph.nodes == found.program.graph.nodes
    with pytest.raises(ConfigError, match="it places unknown layers fc1/shard_0"):
        experiment(f"parallelism.placement={tmp_path / 'placement.json'}")


def test_a_resumed_run_keeps_its_placement(tmp_path: Path) -> None:
    path = stored(tmp_path / "placement.json")
    config = small_config(*MODEL, "parallelism.costs=gone.json")
    kept = build(config, kept_placement=path)
    assert placement_of(kept).layers["fc1"] == worker_device(2)


def test_layers_and_idle_devices_are_in_the_text() -> None:
    text = placement_text(placement_of(experiment("parallelism.constraints={*: 1}")))
    assert text.splitlines()[1:] == [
        f"  {worker_device(0)}: no layer",
        f"  {worker_device(1)}: flatten, fc1, relu1, fc2, loss",
        f"  {worker_device(2)}: no layer",
    ]


def lacking(document: dict[str, Any]) -> None:
    del document["layers"]["fc2"]


def unknown(document: dict[str, Any]) -> None:
    document["layers"]["fc9"] = worker_device(0)


def elsewhere(document: dict[str, Any]) -> None:
    document["layers"]["fc1"] = worker_device(3)


def misspelt(document: dict[str, Any]) -> None:
    document["layers"]["fc1"] = "worker 0"


def newer(document: dict[str, Any]) -> None:
    document["version"] = 2


def numbered(document: dict[str, Any]) -> None:
    document["layers"]["fc1"] = 2


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lacking, "does not fit: it lacks the layers fc2. The layers are flatten, fc1, relu1, fc2, loss; the devices"),
        (unknown, "does not fit: it places unknown layers fc9."),
        (elsewhere, f"does not fit: it names unknown devices {worker_task(3)}."),
        (misspelt, "does not fit: it names unknown devices worker 0. The layers are flatten, fc1, relu1, fc2, loss"),
        (newer, "is damaged: version: 2, expected 1; expected the placement.json of a run"),
        (numbered, "is damaged: layers[fc1]: 2, expected text; expected the placement.json"),
    ],
)
def test_a_placement_that_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    path = stored(tmp_path / "placement.json", change)
    with pytest.raises(ConfigError) as caught:
        experiment(f"parallelism.placement={path}")
    assert f"parallelism.placement={path}" in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("key", ["placement", "costs"])
@pytest.mark.parametrize("content", ["", "[]", "[" * 100_000])
def test_a_file_without_a_json_object_is_refused(tmp_path: Path, key: str, content: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"is damaged: .*; expected the (placement|trace_summary)\.json of a run"):
        experiment(f"parallelism.{key}={path}")


@pytest.mark.parametrize("key", ["placement", "costs"])
def test_a_missing_file_is_refused(tmp_path: Path, key: str) -> None:
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
        ({"node_ns": {"a": 1}}, ": it knows 0 of "),
    ],
)
def test_costs_that_do_not_fit_are_refused(tmp_path: Path, recorded: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "trace_summary.json"
    path.write_text(json.dumps(recorded))
    with pytest.raises(ConfigError) as caught:
        experiment(f"parallelism.costs={path}")
    assert f"parallelism.costs={path}{complaint}" in str(caught.value)


def test_measured_costs_change_the_prediction(tmp_path: Path) -> None:
    built = experiment()
    compiled = built.program.graph
    path = tmp_path / "trace_summary.json"
    path.write_text(json.dumps({"node_ns": {node.name: 1_000_000 for node in compiled}}))
    measured = placement_of(experiment(f"parallelism.costs={path}"))
    # More than ten nodes of a millisecond, one after the other or beside each other.
    assert measured.step_s > 3e-3 > placement_of(built).step_s
