"""Which layer each node of a training graph belongs to, so that a layer can be placed as one.

A layer is the unit of model parallelism: its variables with their slots and updates, its forward pass in all parts of
a batch and in evaluations, and its backward pass. The backward pass needs the layer's weights and the activations that
its forward pass read and computed; anywhere else they would have to be sent there, and the gradient of the weights
back. So it stays, as in DistBelief's partitions, and its freedom would buy transfers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.engine.graph import Graph
from runner.engine.passes.rewriting import needed_by


def home_layers(graph: Graph) -> dict[str, str]:
    """Return node name -> name of the layer it belongs to.

    Nodes belong to the layer that is stamped on them. One without a stamp belongs where the first of its inputs does
    that has a layer: a gradient that is summed over parts or clipped, a loss that is averaged, an assigned value beside
    its variable. What reads nothing of a layer belongs to its first reader: fed examples, labels and scalars,
    constants. Nodes that neither read nor are read belong to the first layer. Empty for a graph without layers.
    """
    homes: dict[str, str] = {}
    for node in graph:
        read = (homes[tensor.node] for tensor in node.inputs if tensor.node in homes)
        home = node.layer.name if node.layer is not None else next(read, None)
        if home is not None:
            homes[node.name] = home
    readers: dict[str, str] = {}
    for node in reversed(list(graph)):
        home = homes.get(node.name) or readers.get(node.name)
        if home is not None:
            homes[node.name] = home
            # Going back through the graph, the reader that is seen last is the first.
            readers.update(dict.fromkeys(needed_by(node), home))
    rest = dict.fromkeys(graph.nodes, next(iter(homes.values()))) if homes else {}
    return homes | {name: home for name, home in rest.items() if name not in homes}


def colocate_layers(graph: Graph, constraints: Mapping[str, str]) -> Graph:
    """Return the graph with the nodes of each layer colocated, and constrained where their layer is.

    constraints: layer -> full or partial device name, which its nodes have instead of their own.
    """
    homes = home_layers(graph)
    first: dict[str, str] = {}
    result = Graph()
    for node in graph:
        home = homes.get(node.name)
        if home is not None:
            device = constraints.get(home, node.device)
            beside = () if first.setdefault(home, node.name) == node.name else (first[home],)
            node = replace(node, device=device, colocate_with=tuple(dict.fromkeys((*node.colocate_with, *beside))))
        result.insert(node)
    return result


def devices_of_layers(graph: Graph) -> dict[str, str]:
    """Return layer -> device of a placed graph whose layers are colocated, in the order of the graph."""
    homes = home_layers(graph)
    return {home: graph.nodes[name].device for name, home in homes.items()}
