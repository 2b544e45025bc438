"""The layers of a network that are sharded: the chosen dense layers, and element-wise layers that follow them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from runner.engine.graph import Graph, LayerStamp, Node, Tensor
from runner.errors import ConfigError
from runner.strategies.layer_names import shard_name
from runner.strategies.replica import Share, shares_of_units
from runner.strategies.sharded.blueprint import BY_UNIT, Blueprint, read_from_outside


class Way(Enum):
    """The way in which a layer is sharded.

    COLUMN: a dense layer by its output units. ROW: a dense layer by its input units. UNITS: a layer that treats every
    unit separately, after a layer sharded by columns.
    """

    COLUMN = "column"
    ROW = "row"
    UNITS = "units"


DENSE_WAYS = (Way.COLUMN.value, Way.ROW.value)
"""Options of ``parallelism.shard`` for a dense layer."""


@dataclass(frozen=True)
class LayerCut:
    """The sharding of a layer. shares: worker -> (begin, end) of its units; a worker without units has no entry."""

    way: Way
    shares: Mapping[int, Share]


def dense_layers(blueprint: Blueprint) -> list[str]:
    """Return the names of the dense layers of a network, in graph order."""
    stamps = dict.fromkeys(node.layer for node in blueprint.forward if node.layer is not None)
    return [stamp.name for stamp in stamps if stamp.kind == "dense"]


def cut_layers(blueprint: Blueprint, ways: Mapping[str, Way], workers: int) -> dict[str, LayerCut]:
    """Return layer -> :class:`LayerCut`, for each sharded layer.

    ways: dense layer -> the way in which it is sharded. Layers that compute each unit from the same unit of a layer
    sharded by columns (activations, dropout) are sharded like that layer. Raises ConfigError for a layer in ``ways``
    that contains more than a matrix product and a bias.
    """
    graph = blueprint.graph
    cuts: dict[str, LayerCut] = {}
    columns: set[Tensor] = set()
    for name, nodes in _nodes_of_layers(blueprint.forward).items():
        if name in ways:
            units = _units_of_product(graph, name, nodes, ways[name])
            cuts[name] = LayerCut(ways[name], shares_of_units(units, workers))
        else:
            passed = _units_passed_on(graph, nodes, columns)
            if passed is not None:
                cuts[name] = LayerCut(Way.UNITS, shares_of_units(passed, workers))
        if name in cuts and cuts[name].way is not Way.ROW:
            columns.update(tensor for node in nodes for tensor in node.tensors)
    return cuts


def shard_stamp(layer: LayerStamp, worker: int) -> LayerStamp:
    """Return the stamp (name and kind) that marks the nodes of a layer's shard on a worker."""
    return replace(layer, name=shard_name(layer.name, worker))


def _nodes_of_layers(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    layers: dict[str, list[Node]] = {}
    for node in nodes:
        if node.layer is not None:
            layers.setdefault(node.layer.name, []).append(node)
    return layers


def _units_of_product(graph: Graph, layer: str, nodes: Sequence[Node], way: Way) -> int:
    """Return the number of columns, or for ``Way.ROW`` of rows, of a dense layer's weights (features, units)."""
    products = [node for node in nodes if node.op == "matmul"]
    transposed = any(node.attributes[key] for node in products for key in ("transpose_a", "transpose_b"))
    plain = {node.op for node in nodes} <= {"variable", "cast", "matmul", "add"}
    if not plain or transposed or len(products) != 1 or set(read_from_outside(nodes)) != {products[0].inputs[0]}:
        raise ConfigError(
            f"parallelism.shard: layer {layer!r} has the ops {', '.join(node.op for node in nodes)}; expected one "
            "product of its input with its weights, and a bias; leave the layer out"
        )
    rows, columns = graph.spec(products[0].inputs[1]).shape
    return columns if way is Way.COLUMN else rows


def _units_passed_on(graph: Graph, nodes: Sequence[Node], columns: Collection[Tensor]) -> int | None:
    """Return a layer's number of units if it treats units of column-sharded tensors separately; otherwise None."""
    by_unit = {*BY_UNIT, "dropout_mask"}
    if not all(node.op in by_unit or (node.op == "fill" and not node.outputs[0].rank) for node in nodes):
        return None
    # A mask reads the step and the indices of examples, which every worker can read.
    read = set(read_from_outside([node for node in nodes if node.op != "dropout_mask"]))
    read -= {tensor for node in nodes for tensor in node.tensors}
    specs = [*(graph.spec(tensor) for tensor in read), *(spec for node in nodes for spec in node.outputs)]
    shapes = {spec.shape for spec in specs if spec.rank}
    if not read or not read <= set(columns) or len(shapes) != 1:
        return None
    (shape,) = shapes
    return shape[1] if len(shape) == 2 else None
