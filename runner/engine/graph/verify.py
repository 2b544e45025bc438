"""Checks of the invariants of graphs that come from other processes or from passes under test."""

from runner.engine.graph import op as op_table
from runner.engine.graph.device import DeviceName
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import NODE_NAME, Node


class VerificationError(ValueError):
    """A graph violates an invariant; the message names the first offending node."""


def verify(graph: Graph) -> None:
    """Check names, order, ops, attributes, shapes, devices, colocation and assignments of a graph.

    Raises VerificationError naming the node and the invariant.
    """
    seen: set[str] = set()
    for name, node in graph.nodes.items():
        if name != node.name:
            raise VerificationError(f"node {node.name!r} is stored under the name {name!r}")
        if not NODE_NAME.fullmatch(name):
            raise VerificationError(f"node name {name!r}: expected letters, digits and the characters _ . / -")
        for before in node.needed:
            if before not in seen:
                raise VerificationError(f"node {name!r} depends on {before!r}, which does not precede it")
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
        raise VerificationError(f"node {node.name!r} has outputs {claimed}, but its op infers {inferred}")


def _verify_device(graph: Graph, node: Node) -> None:
    try:
        DeviceName.parse(node.device)
    except ValueError as error:
        raise VerificationError(f"node {node.name!r}: {error}") from None
    for partner in node.colocate_with:
        if partner not in graph:
            raise VerificationError(f"node {node.name!r} is colocated with {partner!r}, which is not in the graph")


def _verify_assignments(graph: Graph) -> None:
    variables = {node.name for node in graph if node.op == "variable"}
    for node in graph:
        if node.op == "assign" and node.inputs[0].node not in variables:
            raise VerificationError(f"node {node.name!r} assigns to {node.inputs[0]}, which is not a variable")
