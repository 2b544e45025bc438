"""Convert runner's graph to framework-independent layers of a problem. A bias becomes a variable of its layer."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.problem import Layer
from runner.engine.graph import Graph, Node, StateUpdate, Tensor

_SAME_KIND = {"relu": "relu", "add": "add", "add_n": "add", "concat": "concat", "pad": "pad", "slice": "slice"}
"""Op -> kind of layer, for ops whose inputs are outputs of layers and whose attributes become settings."""


@dataclass
class _Description:
    """The layers so far, by node name. names: tensor -> layer, variable or "x". readers: tensor -> reading nodes."""

    graph: Graph
    decays: Mapping[Tensor, StateUpdate]
    readers: Mapping[Tensor, Sequence[Node]]
    layers: dict[str, Layer]
    names: dict[Tensor, str]
    variables: set[Tensor]

    def add(self, node: Node, kind: str, inputs: Sequence[Tensor], **more: Any) -> None:
        names = tuple(self.names[tensor] for tensor in inputs)
        self.layers[node.name] = Layer(node.name, kind, names, node.outputs[0].shape, **more)
        self.names[node[0]] = node.name


def describe(graph: Graph, x: Tensor, logits: Tensor, state_updates: Sequence[StateUpdate]) -> tuple[Layer, ...]:
    """Return the layers from images ``x`` to ``logits`` of a training graph, the logits' layer last.

    graph: forward pass as :mod:`runner.nn` builds it. state_updates: updates of moving averages of batch normalisation.
    Raises ValueError with the name of the first node that no kind of layer describes.
    """
    needed = _ancestors(graph, logits)
    part = Graph({node.name: node for node in graph if node.name in needed})
    readers = part.consumers()
    decays = {update.batch_value: update for update in state_updates}
    found = _Description(graph, decays, readers, layers={}, names={x: "x"}, variables=set())
    for node in part:
        if node[0] != x:
            _TRANSLATIONS.get(node.op, _unknown)(found, node)
    layers = [*found.layers.values()]
    _check_flattened(layers)
    return _with_last_uses(layers)


def _ancestors(graph: Graph, tensor: Tensor) -> set[str]:
    needed = {tensor.node}
    for node in reversed(list(graph)):
        if node.name in needed:
            needed.update(read.node for read in node.inputs)
    return needed


def _unknown(found: _Description, node: Node) -> None:
    known = ", ".join(sorted(_TRANSLATIONS))
    raise ValueError(f"node {node.name!r}: op {node.op!r} is not supported in a problem; expected one of {known}")


def _variable(found: _Description, node: Node) -> None:
    found.names[node[0]] = node.name
    found.variables.add(node[0])


def _reshape(found: _Description, node: Node) -> None:
    (x,) = node.inputs
    if x in found.variables:  # a bias, reshaped to be added to images
        found.names[node[0]] = found.names[x]
        found.variables.add(node[0])
        return
    examples, *rest = found.graph.spec(x).shape
    if node.outputs[0].rank != 2 or node.outputs[0].shape[0] != examples:
        raise ValueError(f"node {node.name!r} reshapes to {node.outputs[0]}; expected (N, features)")
    found.add(node, "flatten", [x], settings={"image": rest})


def _add(found: _Description, node: Node) -> None:
    first, second = node.inputs
    if second not in found.variables:
        found.add(node, "add", node.inputs)
        return
    producer = found.layers.get(found.names[first])
    folds = producer is not None and producer.kind in ("conv", "dense") and "bias" not in producer.variables
    if producer is None or not folds or len(found.readers[first]) != 1:
        raise ValueError(
            f"node {node.name!r} adds {found.names[second]!r}; expected an add that alone reads the output of a "
            "conv or dense layer"
        )
    variables = {**producer.variables, "bias": found.names[second]}
    found.layers[producer.name] = dataclasses.replace(producer, variables=variables)
    found.names[node[0]] = producer.name


def _conv(found: _Description, node: Node) -> None:
    x, weights = node.inputs
    settings = dict(node.attributes)
    dilations = settings.pop("dilations")
    if dilations != (1, 1):
        raise ValueError(f"node {node.name!r} has dilations {dilations}; expected (1, 1)")
    image, kernel = (found.graph.spec(tensor).shape[2:] for tensor in node.inputs)
    settings |= {"image": image, "kernel": kernel}
    found.add(node, "conv", [x], variables={"weights": found.names[weights]}, settings=settings)


def _dense(found: _Description, node: Node) -> None:
    x, weights = node.inputs
    if node.attributes["transpose_a"] or node.attributes["transpose_b"]:
        raise ValueError(
            f"node {node.name!r} transposes an input; expected x (N, features) times weights (features, units)"
        )
    source = found.layers.get(found.names[x])
    image = source.settings["image"] if source is not None and source.kind == "flatten" else None
    found.add(node, "dense", [x], variables={"weights": found.names[weights]}, settings={"image": image})


def _batch_norm(found: _Description, node: Node) -> None:
    x, gamma, beta = node.inputs
    mean, variance = (found.decays[node[port]] for port in (1, 2))
    scale = {"gamma": found.names[gamma]} if gamma in found.variables else {}
    variables = {
        **scale,
        "beta": found.names[beta],
        "moving_mean": mean.variable.name,
        "moving_variance": variance.variable.name,
    }
    settings = {"epsilon": node.attributes["epsilon"], "decay": mean.decay}
    found.add(node, "batch_norm", [x], variables=variables, settings=settings)


def _reduce_mean(found: _Description, node: Node) -> None:
    if node.attributes["axes"] != (2, 3) or node.attributes["keepdims"]:
        raise ValueError(f"node {node.name!r} has {dict(node.attributes)}; expected axes (2, 3) and keepdims False")
    found.add(node, "global_avg_pool", node.inputs)


def _plain(found: _Description, node: Node) -> None:
    found.add(node, _SAME_KIND[node.op], node.inputs, settings=dict(node.attributes))


def _pool(found: _Description, node: Node) -> None:
    attributes = node.attributes
    if attributes["window"] == (1, 1):
        found.add(node, "subsample", node.inputs, settings={"strides": attributes["strides"]})
        return
    image = found.graph.spec(node.inputs[0]).shape[2:]
    found.add(node, node.op, node.inputs, settings={**attributes, "image": image})


def _fill(found: _Description, node: Node) -> None:
    """Ignore the constant 1 that a batch normalization without gamma reads."""
    readers = {reader.op for reader in found.readers[node[0]]}
    if node.attributes["value"] != 1.0 or readers != {"batch_norm"}:
        raise ValueError(
            f"node {node.name!r} is read by {', '.join(sorted(readers))}; expected a scale of 1 in batch_norm"
        )


def _identity(found: _Description, node: Node) -> None:
    found.names[node[0]] = found.names[node.inputs[0]]


_TRANSLATIONS: dict[str, Callable[[_Description, Node], None]] = {
    **dict.fromkeys(_SAME_KIND, _plain),
    "variable": _variable,
    "max_pool": _pool,
    "avg_pool": _pool,
    "reshape": _reshape,
    "add": _add,
    "conv2d": _conv,
    "matmul": _dense,
    "batch_norm": _batch_norm,
    "reduce_mean": _reduce_mean,
    "identity": _identity,
    "fill": _fill,
}
"""Op -> function that adds a node with this op to the description."""


def _check_flattened(layers: Sequence[Layer]) -> None:
    """Require that only dense layers read flattened images: channels-last peers reorder the weights of these layers."""
    flat = {layer.name for layer in layers if layer.kind == "flatten"}
    for layer in layers:
        if layer.kind != "dense" and flat.intersection(layer.inputs):
            raise ValueError(
                f"layer {layer.name!r} of kind {layer.kind!r} reads a flattened image; expected a dense layer"
            )


def _with_last_uses(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    seen: set[str] = set()
    marked = []
    for layer in reversed(layers):
        last = tuple(name for name in dict.fromkeys(layer.inputs) if name not in seen)
        seen.update(last)
        marked.append(dataclasses.replace(layer, last_uses=last))
    return tuple(reversed(marked))
