"""Graphs as plain data with a fixed schema.

A document consists only of maps, lists, strings, numbers and bytes. Reading a document checks every field, and
:func:`verify` infers every shape again and rejects a document whose shapes differ from the inferred ones.
"""

from typing import Any

from runner.engine.graph import op as op_table
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import LayerStamp, Node
from runner.engine.graph.tensor import DTYPES, Tensor, TensorSpec
from runner.engine.graph.verify import VerificationError, verify
from runner.system.schema import FLAG, AnyMap, Integer, ListOf, Maybe, OneOf, Record, Text, Violation

MAX_NODES = 1_000_000
MAX_ITEMS = 2**16
"""Largest number of inputs of a node, outputs of a node, dimensions of a tensor, and characters in a name."""

NAME = Text(MAX_ITEMS)


class TensorText:
    """The schema of a tensor: the text ``node:port``."""

    def read(self, plain: Any, where: str) -> Tensor:
        NAME.read(plain, where)
        tensor = Tensor.parse(plain)
        if str(tensor) != plain:
            raise Violation(f"{where}: tensor reference {plain!r:.80}, expected {tensor}")
        return tensor

    def write(self, value: Any, where: str) -> str:
        return str(value)


class GraphDocument:
    """The schema of a graph; see :func:`to_document`."""

    def read(self, plain: Any, where: str) -> Graph:
        return from_document(plain)

    def write(self, value: Any, where: str) -> list[Any]:
        return to_document(value)


class _Attributes(AnyMap):
    """The schema of a node's attributes; the op's definition checks the values."""

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
        layer=Maybe(Record(LayerStamp, name=NAME, kind=NAME, recomputed=FLAG)),
        backward=FLAG,
    ),
    MAX_NODES,
)


def to_document(graph: Graph) -> list[Any]:
    """Describe a graph as plain data."""
    return _NODES.write(tuple(graph), "graph")


def from_document(document: object) -> Graph:
    """Build a graph from untrusted plain data; raises VerificationError for a malformed or invalid graph."""
    graph = Graph()
    where = ""
    try:
        for number, node in enumerate(_NODES.read(document, "graph document")):
            where = f"graph document, node {number}: "
            attributes = op_table.lookup(node.op).canonical(node.attributes)
            graph.insert(node.changed(attributes=attributes))
    except ValueError as error:
        raise VerificationError(f"{where}{error}") from None
    verify(graph)
    return graph
