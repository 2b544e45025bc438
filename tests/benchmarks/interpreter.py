"""The layers of a problem, put back into a graph of ours: what was described must compute what was there."""

from collections.abc import Callable, Mapping

from benchmarks.problem import Layer, Problem
from runner.engine.compile.program import Client, Program
from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from runner.engine.run.local_session import LocalSession
from runner.kernels.registry import Registry


def forward_loss(problem: Problem, registry: Registry) -> float:
    """Mean loss of the problem's batch at its initial values, from layers, files and nothing else."""
    graph = Graph()
    with graph.device(worker_device(0)):
        x = ops.placeholder(graph, problem.x.shape, "float32", name="x")
        y = ops.placeholder(graph, problem.y.shape, "int64", name="y")
        fed = {"x": (x,), "y": (y,)}
        values = {"x": x}
        for layer in problem.layers:
            held = {role: _fed(graph, problem, name, fed) for role, name in layer.variables.items()}
            values[layer.name] = LAYERS[layer.kind](graph, layer, [values[name] for name in layer.inputs], held)
        losses = ops.softmax_cross_entropy(graph, values[problem.layers[-1].name], y)[0]
        loss = ops.reduce_mean(graph, losses, axes=(0,))
    client = Client("forward", fetches={"loss": loss}, feeds=fed)
    arrays = {name: problem.variable(name) for name in fed if name not in ("x", "y")}
    session = LocalSession(Program(graph, {"forward": client}, {}, workers=1), local_cluster(1), registry)
    try:
        return float(session.run("forward", feeds={**arrays, "x": problem.x, "y": problem.y})["loss"])
    finally:
        session.close()


def _fed(graph: Graph, problem: Problem, name: str, fed: dict[str, tuple[Tensor, ...]]) -> Tensor:
    fed[name] = (ops.placeholder(graph, problem.variable(name).shape, "float32", name=f"fed/{name}"),)
    return fed[name][0]


Variables = Mapping[str, Tensor]


def _conv(graph: Graph, layer: Layer, inputs: list[Tensor], held: Variables) -> Tensor:
    geometry = {name: layer.settings[name] for name in ("strides", "padding", "groups")}
    y = ops.conv2d(graph, inputs[0], held["weights"], **geometry)
    return ops.add(graph, y, ops.reshape(graph, held["bias"], (-1, 1, 1))) if "bias" in held else y


def _dense(graph: Graph, layer: Layer, inputs: list[Tensor], held: Variables) -> Tensor:
    y = ops.matmul(graph, inputs[0], held["weights"])
    return ops.add(graph, y, held["bias"]) if "bias" in held else y


def _batch_norm(graph: Graph, layer: Layer, inputs: list[Tensor], held: Variables) -> Tensor:
    return ops.batch_norm(graph, inputs[0], held["gamma"], held["beta"], epsilon=layer.settings["epsilon"])[0]


def _max_pool(graph: Graph, layer: Layer, inputs: list[Tensor], held: Variables) -> Tensor:
    geometry = {name: layer.settings[name] for name in ("window", "strides", "padding")}
    return ops.max_pool(graph, inputs[0], **geometry)[0]


LAYERS: Mapping[str, Callable[[Graph, Layer, list[Tensor], Variables], Tensor]] = {
    "conv": _conv,
    "dense": _dense,
    "batch_norm": _batch_norm,
    "max_pool": _max_pool,
    "relu": lambda graph, layer, inputs, held: ops.relu(graph, inputs[0]),
    "flatten": lambda graph, layer, inputs, held: ops.reshape(graph, inputs[0], layer.shape),
    "add": lambda graph, layer, inputs, held: ops.add(graph, *inputs),
    "concat": lambda graph, layer, inputs, held: ops.concat(graph, inputs, **layer.settings),
    "pad": lambda graph, layer, inputs, held: ops.pad(graph, inputs[0], **layer.settings),
    "global_avg_pool": lambda graph, layer, inputs, held: ops.reduce_mean(graph, inputs[0], axes=(2, 3)),
    "subsample": lambda graph, layer, inputs, held: ops.avg_pool(
        graph, inputs[0], window=(1, 1), strides=layer.settings["strides"]
    ),
}
