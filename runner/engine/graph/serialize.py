"""Graphs as plain data with a closed schema: how they cross process boundaries.

A document is built of maps, lists, strings, numbers and bytes only. Reading one checks every field, and
:func:`runner.engine.graph.verify.verify` infers every shape again, so a document cannot claim what ops do not infer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.engine.graph import op as op_table
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import LayerStamp, Node
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.engine.graph.verify import VerificationError, verify

FORMAT = 1
MAX_NODES = 1_000_000
_NODE_FIELDS = {"name", "op", "inputs", "attributes", "outputs", "device", "control", "colocate", "layer"}


def to_document(graph: Graph) -> dict[str, Any]:
    """Describe a graph as plain data."""
    return {"format": FORMAT, "nodes": [_node_document(node) for node in graph]}


def _node_document(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "op": node.op,
        "inputs": [str(tensor) for tensor in node.inputs],
        "attributes": {k: list(v) if isinstance(v, tuple) else v for k, v in node.attributes.items()},
        "outputs": [[list(spec.shape), spec.dtype] for spec in node.outputs],
        "device": node.device,
        "control": list(node.control_inputs),
        "colocate": list(node.colocate_with),
        "layer": None if node.layer is None else [node.layer.name, node.layer.kind],
    }


def from_document(document: object) -> Graph:
    """Build a graph from plain data of unknown origin; raises VerificationError for a malformed or illegal graph."""
    if not isinstance(document, Mapping) or set(document) != {"format", "nodes"}:
        raise VerificationError("graph document: expected a map with the fields 'format' and 'nodes'")
    if document["format"] != FORMAT:
        raise VerificationError(f"graph document: format {document['format']!r}, expected {FORMAT}")
    nodes = document["nodes"]
    if not isinstance(nodes, list) or len(nodes) > MAX_NODES:
        raise VerificationError(f"graph document: 'nodes' must be a list of at most {MAX_NODES} entries")
    graph = Graph()
    for position, entry in enumerate(nodes):
        try:
            graph.insert(_node(entry))
        except (ValueError, TypeError) as error:
            raise VerificationError(f"graph document, node {position}: {error}") from None
    verify(graph)
    return graph


def _node(entry: object) -> Node:
    if not isinstance(entry, Mapping) or set(entry) != _NODE_FIELDS:
        raise ValueError(f"expected a map with the fields {sorted(_NODE_FIELDS)}")
    layer = entry["layer"]
    return Node(
        name=_text(entry["name"]),
        op=_text(entry["op"]),
        inputs=tuple(Tensor.parse(_text(reference)) for reference in _items(entry["inputs"])),
        attributes=op_table.lookup(_text(entry["op"])).canonical(_map(entry["attributes"])),
        outputs=tuple(_spec(output) for output in _items(entry["outputs"])),
        device=_text(entry["device"]),
        control_inputs=tuple(_text(name) for name in _items(entry["control"])),
        colocate_with=tuple(_text(name) for name in _items(entry["colocate"])),
        layer=None if layer is None else LayerStamp(*(_text(part) for part in _items(layer, 2))),
    )


def _spec(entry: object) -> TensorSpec:
    shape, dtype = _items(entry, 2)
    return TensorSpec(tuple(_items(shape)), _text(dtype))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, came {type(value).__name__}")
    return value


def _map(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"expected a map with text keys, came {type(value).__name__}")
    return value


def _items(value: object, count: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise ValueError(f"expected a list{'' if count is None else f' of {count}'}, came {value!r:.80}")
    return value
