"""Assignment of the nodes of a training graph to layers, so that each layer is placed on one device.

A layer is the unit of model parallelism. A layer includes its variables with their optimizer slots and updates, its
forward pass in all parts of a batch and in evaluations, and its backward pass. As in the partitions of DistBelief, the
forward and the backward pass are on one device, because two devices would have to exchange weights, activations and
weight gradients.
"""

from collections.abc import Mapping

from runner.engine.graph import Graph, Node


def home_layers(graph: Graph) -> dict[str, str]:
    """Return the name of each node's layer, by node name; the result is empty for a graph without layers.

    A node belongs to the layer that ``node.layer`` records. If ``node.layer`` is None, as for a sum of gradients or an
    averaged loss, the node belongs to the layer of its first input that has one. A node that reads nothing from a
    layer, such as a fed label or a constant, belongs to the layer of its first reader. A node that neither reads from a
    layer nor is read by one belongs to the first layer.
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
            # The walk goes backwards, so the reader that it visits last is the first in the graph.
            readers.update(dict.fromkeys(node.needed, home))
    rest = dict.fromkeys(graph.nodes, next(iter(homes.values()))) if homes else {}
    return homes | {name: home for name, home in rest.items() if name not in homes}


def colocate_layers(graph: Graph, constraints: Mapping[str, str]) -> Graph:
    """Return the graph with the nodes of each layer colocated.

    constraints: layer -> full or partial device name, which replaces the constraints of the layer's nodes.
    """
    homes = home_layers(graph)
    first: dict[str, str] = {}
    result: list[Node] = []
    for node in graph:
        home = homes.get(node.name)
        if home is not None:
            device = constraints.get(home, node.device)
            partner = () if first.setdefault(home, node.name) == node.name else (first[home],)
            node = node.changed(device=device, colocate_with=tuple(dict.fromkeys((*node.colocate_with, *partner))))
        result.append(node)
    return Graph.of(result)


def devices_of_layers(graph: Graph) -> dict[str, str]:
    """Return the device of each layer of a placed graph whose layers are colocated, in the order of the graph."""
    homes = home_layers(graph)
    return {home: graph.nodes[name].device for name, home in homes.items()}
