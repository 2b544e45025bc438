"""The placement of layers in a model-parallel run, found once and stored in ``placement.json``."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

from runner.engine.compile.cost import Seconds, node_seconds
from runner.engine.compile.passes.layer_groups import colocate_layers, devices_of_layers, home_layers
from runner.engine.compile.program import Program
from runner.engine.compile.program_placement import measured_seconds, place_program
from runner.engine.graph import Cluster, task_of
from runner.errors import ConfigError
from runner.kernels.registry import Registry
from runner.strategies.base import LayerPlacement
from runner.strategies.layer_names import shard_of
from runner.system.files import replace_durably
from runner.system.json_file import JsonFile
from runner.system.schema import LenientRecord, MapOf, Number, Text

VERSION = 1
T = TypeVar("T")


@dataclass(frozen=True)
class _Layers:
    """The fields that are read from a ``placement.json``; other fields are ignored."""

    layers: dict[str, str]


@dataclass(frozen=True)
class _NodeTimes:
    """The fields that are read from a ``trace_summary.json``. node_ns: node -> nanoseconds."""

    node_ns: Annotated[dict[str, float], MapOf(Text(), Number(0))]


_LAYERS: JsonFile[_Layers] = JsonFile(
    LenientRecord(_Layers, closed=False), ConfigError, "expected the placement.json of a run", version=VERSION
)
_NODE_TIMES: JsonFile[_NodeTimes] = JsonFile(
    LenientRecord(_NodeTimes, closed=False), ConfigError, "expected the trace_summary.json of a run", version=None
)


@dataclass(frozen=True)
class Placement:
    """The devices of the layers, and the method that found them.

    layers: layer or shard of a layer -> device, in the order of the network. idle: devices without a layer. found_by:
    the method that found the placement. tried_step_s: method -> simulated seconds of a training step.
    """

    layers: Mapping[str, str]
    idle: tuple[str, ...]
    found_by: str
    tried_step_s: Mapping[str, float]

    @property
    def step_s(self) -> float:
        """Simulated seconds of a training step."""
        return self.tried_step_s[self.found_by]

    def write(self, path: Path) -> None:
        """Write the file that :func:`read_layers` reads; raises OSError."""
        document = {"version": VERSION, **asdict(self)}
        replace_durably(path, (json.dumps(document, indent=1) + "\n").encode())


@dataclass(frozen=True)
class PlacedLayers:
    """A program with its placement. seconds: returns the execution time of a node in simulated steps."""

    program: Program
    placement: Placement
    seconds: Seconds


def place_layers(
    wanted: LayerPlacement, program: Program, cluster: Cluster, kernels: Registry, kept: Path | None = None
) -> PlacedLayers:
    """Find a placement for the layers of a program, or apply a stored one. kernels: kernels for the cluster's devices.

    kept: the placement file of a resumed run, used instead of ``parallelism.placement``. Raises ConfigError if the
    file that ``parallelism.placement`` or ``parallelism.costs`` names cannot be read or does not fit the program.
    """
    seconds = _seconds_of_nodes(wanted.costs if kept is None else None, program, cluster, kernels)
    stored = kept if kept is not None or wanted.stored is None else Path(wanted.stored)
    if stored is not None:
        layers = {layer: _task_named(device) for layer, device in read_layers(stored).items()}
        _expect_fit(stored, layers, program, cluster)
        program = replace(program, graph=colocate_layers(program.graph, layers))
    placed = place_program(program, cluster, kernels, seconds)
    layers = devices_of_layers(placed.program.graph)
    idle = tuple(device.name for device in cluster.devices if device.name not in layers.values())
    return PlacedLayers(placed.program, Placement(layers, idle, placed.found_by, placed.tried), seconds)


def placement_text(placement: Placement) -> str:
    """Return a line with the methods that were tried, and a line for each device with its layers."""
    tried = ", ".join(f"{way} {1e3 * seconds:,.3f} ms" for way, seconds in placement.tried_step_s.items())
    lines = [f"placement of layers: {placement.found_by} (simulated step: {tried})"]
    for device in sorted({*placement.layers.values(), *placement.idle}):
        layers = ", ".join(layer for layer, own in placement.layers.items() if own == device)
        lines.append(f"  {device}: {layers or 'no layer'}")
    return "\n".join(lines)


def layer_device_text(placement: Placement, layer: str) -> str:
    """Return a layer's device, the number of devices over which it is sharded, or both; "-" if there is neither."""
    shards = [shard for shard in map(shard_of, placement.layers) if shard is not None and shard[0] == layer]
    own = [placement.layers[layer]] if layer in placement.layers else []
    return ", ".join([f"split over {len(shards)} devices", *own] if shards else own) or "-"


def _seconds_of_nodes(costs: str | None, program: Program, cluster: Cluster, kernels: Registry) -> Seconds:
    """Return the function for the execution time of nodes: from formulas, or from file ``costs`` if one is given."""
    if costs is None:
        return node_seconds
    try:
        nanoseconds = _read(_NODE_TIMES, f"parallelism.costs={costs}", Path(costs)).node_ns
        seconds = {node: 1e-9 * ns for node, ns in nanoseconds.items()}
        return measured_seconds(seconds, program, cluster, kernels)
    except ValueError as error:
        raise ConfigError(
            f"parallelism.costs={costs}: {error}; use a run of this network with trace=true whose batches have "
            "as many parts as in this run: parallelism=single with train.microbatches, or parallelism=model with "
            "parallelism.concurrent_steps"
        ) from None


def read_layers(path: Path) -> dict[str, str]:
    """Return layer -> device of a ``placement.json``; raises ConfigError for any other content."""
    return _read(_LAYERS, f"parallelism.placement={path}", path).layers


def _task_named(device: str) -> str:
    """Return the task in a device name. Any other text is returned unchanged and matches no device."""
    try:
        return task_of(device)
    except ValueError:
        return device


def _expect_fit(path: Path, stored: Mapping[str, str], program: Program, cluster: Cluster) -> None:
    layers = dict.fromkeys(home_layers(program.graph).values())
    devices = [task_of(device.name) for device in cluster.devices]
    faults = {
        "missing layers": [layer for layer in layers if layer not in stored],
        "unknown layers": [layer for layer in stored if layer not in layers],
        "unknown devices": sorted(set(stored.values()) - set(devices)),
    }
    found = [f"{what} {', '.join(names)}" for what, names in faults.items() if names]
    if found:
        raise ConfigError(
            f"parallelism.placement={path} does not fit: {'; '.join(found)}. The layers are {', '.join(layers)}; the "
            f"devices are {', '.join(devices)}"
        )


def _read(file: JsonFile[T], key: str, path: Path) -> T:
    try:
        return file.read(path, called=key)
    except OSError as error:
        raise ConfigError(f"{key}: cannot be read: {error.strerror}") from error
