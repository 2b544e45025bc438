"""A forward pass in a separate graph, from which strategies copy nodes; the division of units over workers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.engine.graph import Declaration, Graph, Node, Outputs, StateUpdate, Tensor, Variable, Variables, ops
from runner.engine.graph.network import Lookup
from runner.strategies.base import Workload
from runner.strategies.replica import Replica, Share, cast_fields, placeholders

BY_UNIT = frozenset(
    (
        *("abs", "add", "cast", "div", "equal", "erf", "exp", "greater", "greater_equal", "identity", "less", "log"),
        *("log1p", "maximum", "minimum", "mul", "neg", "pow", "relu", "select", "sigmoid", "sigmoid_cross_entropy"),
        *("sign", "sqrt", "square", "stop_gradient", "sub", "tanh", "batch_norm", "batch_norm_inference"),
    )
)
"""Ops that compute each unit of their outputs from the same unit of their inputs; units are the last axis."""


@dataclass(frozen=True)
class Blueprint:
    """One forward pass over some examples, without devices.

    step: () int64. batch: field -> input; fields that define no dtype have the dtype of activations. declarations:
    tensor of a variable -> its declaration.
    """

    graph: Graph
    step: Tensor
    batch: Mapping[str, Tensor]
    outputs: Outputs
    state_updates: Sequence[StateUpdate]
    lookups: Sequence[Lookup]
    declarations: Mapping[Tensor, Declaration]

    @classmethod
    def of(cls, workload: Workload, examples: int, *, training: bool) -> "Blueprint":
        """Build the network of a workload over a batch with this number of examples."""
        graph = Graph()
        variables = _Recorded(graph, seed=workload.seed)
        replica = Replica(graph, workload, device="", variables=variables)
        batch = cast_fields(graph, workload, placeholders(graph, workload, examples))
        net = replica.builder(batch, variables, training=training)
        outputs = workload.network(net, batch)
        return cls(graph, replica.step, batch, outputs, net.state_updates, net.lookups, variables.declarations)

    @property
    def forward(self) -> list[Node]:
        """The nodes that the outputs and the statistics depend on, in graph order."""
        return list(
            self.needed_for([*self.outputs.tensors, *(each.batch_value for each in self.state_updates)]).values()
        )

    @property
    def answers(self) -> list[tuple[str, Tensor]]:
        """The loss, the metrics and the collected values, each with its name."""
        return [*self.outputs.summed.items(), *self.outputs.collected.items()]

    def needed_for(self, tensors: Iterable[Tensor]) -> dict[str, Node]:
        """Return the nodes that tensors depend on, in graph order, except the inputs: the step and the batch."""
        given = {self.step.node, *(tensor.node for tensor in self.batch.values())}
        wanted = {tensor.node for tensor in tensors} - given
        for node in reversed(list(self.graph)):
            if node.name in wanted:
                wanted.update({tensor.node for tensor in node.inputs} - given)
        return {node.name: node for node in self.graph if node.name in wanted}

    def declared_for(self, nodes: Iterable[Node]) -> list[Declaration]:
        """Return the declarations of variables that nodes read and of averages that they update, in creation order."""
        names = {node.name for node in nodes}
        used = names | {each.variable.tensor.node for each in self.state_updates if each.batch_value.node in names}
        return [declared for tensor, declared in self.declarations.items() if tensor.node in used]


class _Recorded(Variables):
    """A store that records the declaration of each variable."""

    def __init__(self, graph: Graph, *, seed: int) -> None:
        super().__init__(graph, seed=seed)
        self.declarations: dict[Tensor, Declaration] = {}

    def _create(self, declared: Declaration, device: str) -> Variable:
        variable = super()._create(declared, device)
        self.declarations[variable.tensor] = declared
        return variable


def add_copies(
    blueprint: Blueprint, nodes: Sequence[Node], variables: Variables, given: Mapping[Tensor, Tensor]
) -> dict[Tensor, Tensor]:
    """Add nodes of a blueprint to the graph of a store, and their variables to the store.

    nodes: in graph order. given: tensors of the blueprint that the nodes read -> tensors of the graph. Returns this
    map, extended by every tensor of the nodes. Nodes are added in the current scope, on the current device.
    """
    graph, added = variables.graph, dict(given)
    for declared in blueprint.declared_for(nodes):
        variables.declare(declared, variables.device)
    for node in nodes:
        if node[0] in blueprint.declarations:
            added[node[0]] = variables[blueprint.declarations[node[0]].name].tensor
            continue
        with graph.layer(node.layer):
            copy = graph.add(node.op, [added[tensor] for tensor in node.inputs], node.attributes, name=node.name)
        added.update(zip(node.tensors, copy.tensors, strict=True))
    return added


def read_from_outside(nodes: Collection[Node]) -> list[Tensor]:
    """Return the tensors that nodes read from other nodes."""
    own = {node.name for node in nodes}
    return [tensor for node in nodes for tensor in node.inputs if tensor.node not in own]


def mask_of_units(node: Node, share: Share) -> dict[str, Any]:
    """Return attributes with which a ``dropout_mask`` (N, U) computes only the columns ``share`` of its mask."""
    begin, end = share
    return {"shape": (node.attributes["shape"][0], end - begin), "first": node.attributes["first"] + begin}


def joined(graph: Graph, parts: Sequence[Tensor], axis: int) -> Tensor:
    """Add the concatenation of parts along an axis."""
    return parts[0] if len(parts) == 1 else ops.concat(graph, parts, axis, name="gathered")
