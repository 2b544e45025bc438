"""Graphs as plain data with a closed schema, and the checks that every legal graph passes.

A document is built of maps, lists, strings, numbers and bytes only. Reading one checks every field, and :func:`verify`
infers every shape again, so a document cannot claim what ops do not infer.
"""

from dataclasses import replace
from typing import Any

from runner.engine.graph import op as op_table
from runner.engine.graph.device import DeviceName
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import DTYPES, NODE_NAME, LayerStamp, Node, Tensor, TensorSpec
from runner.system.schema import AnyMap, Integer, ListOf, Maybe, OneOf, Record, Text, Violation


class VerificationError(ValueError):
    """A graph breaks an invariant; the message names the first offending node."""


def verify(graph: Graph) -> None:
    """Check names, order, ops, attributes, shapes, devices, colocation and assignments of a graph.

    Raises VerificationError naming the node and the invariant.
    """
    seen: set[str] = set()
    for name, node in graph.nodes.items():
        if name != node.name:
            raise VerificationError(f"node {node.name!r} is filed under {name!r}")
        if not NODE_NAME.fullmatch(name):
            raise VerificationError(f"node name {name!r}: expected letters, digits and the characters _ . / -")
        for before in (*(t.node for t in node.inputs), *node.control_inputs):
            if before not in seen:
                raise VerificationError(f"node {name!r} depends on {before!r}, which is not before it")
        _verify_rule(graph, node)
        _verify_device(graph, node)
        seen.add(name)
    _verify_assignments(graph)


def _verify_rule(graph: Graph, node: Node) -> None:
    try:
        definition = op_table.lookup(node.op)
        attributes = definition.canonical(node.attributes)
        outputs = definition.output_specs(graph.input_specs(node), attributes)
    except ValueError as error:
        raise VerificationError(f"node {node.name!r}: {error}") from None
    if attributes != dict(node.attributes):
        raise VerificationError(f"node {node.name!r}: attributes {node.attributes} are not in canonical form")
    if outputs != node.outputs:
        claimed, inferred = [str(s) for s in node.outputs], [str(s) for s in outputs]
        raise VerificationError(f"node {node.name!r} claims outputs {claimed}, its op infers {inferred}")


def _verify_device(graph: Graph, node: Node) -> None:
    try:
        DeviceName.parse(node.device)
    except ValueError as error:
        raise VerificationError(f"node {node.name!r}: {error}") from None
    for partner in node.colocate_with:
        if partner not in graph:
            raise VerificationError(f"node {node.name!r} is colocated with {partner!r}, which is not there")


def _verify_assignments(graph: Graph) -> None:
    variables = {node.name for node in graph if node.op == "variable"}
    for node in graph:
        if node.op == "assign" and node.inputs[0].node not in variables:
            raise VerificationError(f"node {node.name!r} assigns to {node.inputs[0]}, which is no variable")


MAX_NODES = 1_000_000
MAX_ITEMS = 2**16
"""Largest number of inputs, outputs or dimensions, and of characters of a name."""

NAME = Text(MAX_ITEMS)


class TensorText:
    """A tensor as the text ``node:port``."""

    def read(self, plain: Any, where: str) -> Tensor:
        NAME.read(plain, where)
        tensor = Tensor.parse(plain)
        if str(tensor) != plain:
            raise Violation(f"{where}: tensor reference {plain!r:.80}, expected {tensor}")
        return tensor

    def write(self, value: Any, where: str) -> str:
        return str(value)


class GraphDocument:
    """A graph as its document."""

    def read(self, plain: Any, where: str) -> Graph:
        return from_document(plain)

    def write(self, value: Any, where: str) -> list[Any]:
        return to_document(value)


class _Attributes(AnyMap):
    """The attributes of a node; the op checks their values."""

    def write(self, value: Any, where: str) -> dict[str, Any]:
        return {name: list(each) if isinstance(each, tuple) else each for name, each in value.items()}


TENSOR = TensorText()
_NODES = ListOf(
    Record(
        Node,
        name=NAME,
        op=NAME,
        inputs=ListOf(TENSOR, MAX_ITEMS),
        attributes=_Attributes(),
        outputs=ListOf(Record(TensorSpec, shape=ListOf(Integer(), MAX_ITEMS), dtype=OneOf(DTYPES)), MAX_ITEMS),
        device=NAME,
        control_inputs=ListOf(NAME, MAX_NODES),
        colocate_with=ListOf(NAME, MAX_NODES),
        layer=Maybe(Record(LayerStamp, name=NAME, kind=NAME)),
    ),
    MAX_NODES,
)


def to_document(graph: Graph) -> list[Any]:
    """Describe a graph as plain data."""
    return _NODES.write(tuple(graph), "graph")


def from_document(document: object) -> Graph:
    """Build a graph from plain data of unknown origin; raises VerificationError for a malformed or illegal graph."""
    graph = Graph()
    where = ""
    try:
        for number, node in enumerate(_NODES.read(document, "graph document")):
            where = f"graph document, node {number}: "
            attributes = op_table.lookup(node.op).canonical(node.attributes)
            graph.insert(replace(node, attributes=attributes))
    except ValueError as error:
        raise VerificationError(f"{where}{error}") from None
    verify(graph)
    return graph
