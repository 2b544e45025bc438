"""The size and the work of each layer of a network, for one example."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from runner.engine.compile.cost import node_cost
from runner.engine.graph import Graph, NetworkBuilder, Node, Tensor
from runner.engine.graph.network import CarriedState
from runner.strategies.replica import Replica, cast_fields, placeholders
from runner.training.build import workload_of
from runner.training.experiment import Experiment

_MULTIPLYING = ("matmul", "conv2d", "conv2d_input_gradient", "lstm")
"""Ops whose floating-point operations are pairs of a multiplication and an addition."""
_PASSING_ON = ("reshape", "identity")  # ops whose output shares memory with their input


@dataclass(frozen=True)
class LayerRow:
    """The size and the work of one layer, for one example.

    output: shape of the output. parameters: number of trained values. multiply_adds: number of multiply-adds in forward
    convolutions and matrix products. activation_bytes: bytes of the output; 0 if the output shares the input's memory.
    """

    name: str
    kind: str
    output: str
    parameters: int
    multiply_adds: int
    activation_bytes: int


def layer_rows(experiment: Experiment) -> list[LayerRow]:
    """Return the rows, in network order, of a training graph for one example before any compiler pass.

    Layers that add no node to the graph, such as dropout at rate 0, have no row.
    """
    net = _network_of_one_example(experiment)
    nodes: dict[str, list[Node]] = {}
    for node in net.graph:
        if node.layer is not None:
            nodes.setdefault(node.layer.name, []).append(node)
    parameters: Counter[str] = Counter()
    for variable in net.variables.trainable:
        parameters[variable.name.rpartition("/")[0]] += variable.spec.size
    return [
        _layer_row(net.graph, nodes[name], output, parameters[name])
        for name, output in net.layer_outputs.items()
        if name in nodes
    ]


def _network_of_one_example(experiment: Experiment) -> NetworkBuilder:
    """Return the network, built in training mode in a separate graph, with a batch of one example."""
    workload = workload_of(experiment.config, experiment.facts)
    replica = Replica(Graph(), workload, device="")
    batch = cast_fields(replica.graph, workload, placeholders(replica.graph, workload, 1))
    carried = CarriedState(replica.variables, (0, 1), 1)
    net = replica.builder(batch, replica.variables, training=True, carried=carried)
    workload.network(net, batch)
    return net


def _layer_row(graph: Graph, nodes: Sequence[Node], output: Tensor, parameters: int) -> LayerRow:
    stamp = nodes[0].layer
    assert stamp is not None, "only stamped nodes are grouped"
    spec = graph.spec(output)
    flops = sum(node_cost(graph, node).flops for node in nodes if node.op in _MULTIPLYING)
    return LayerRow(
        stamp.name,
        stamp.kind,
        "x".join(map(str, spec.shape[1:])) or "1",
        parameters,
        flops // 2,
        0 if graph.nodes[output.node].op in _PASSING_ON else spec.nbytes,
    )
