"""What passes that rewrite graphs share: what must survive, who reads what, and how nodes are exchanged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.engine.graph import Graph, Node
from runner.engine.tensor import Tensor, TensorSpec

Moved = dict[Tensor, Tensor]
"""Where tensors went: old -> new, for those that are found somewhere else now."""

Rewrite = tuple[Graph, Moved]
"""The new graph, and where tensors of the old one are found in it."""


@dataclass(frozen=True)
class Roots:
    """What a graph is run for, beside what it writes: tensors to fetch, and nodes to run under their own names."""

    fetches: frozenset[Tensor] = frozenset()
    targets: frozenset[str] = frozenset()

    @classmethod
    def of(cls, fetches: Iterable[Tensor], targets: Iterable[str] = ()) -> Roots:
        """Roots of any collections."""
        return cls(frozenset(fetches), frozenset(targets))

    def after(self, moved: Mapping[Tensor, Tensor]) -> Roots:
        """The same roots in a rewritten graph."""
        return replace(self, fetches=frozenset(moved.get(tensor, tensor) for tensor in self.fetches))


class Uses:
    """Who needs what of a graph.

    readers: for every consumed tensor the nodes that read it. position: of each node in the graph. awaited: names of
    nodes that others wait for or stand beside. pinned: those and targets, the nodes that must go on to exist.
    """

    def __init__(self, graph: Graph, roots: Roots) -> None:
        self.graph = graph
        self.roots = roots
        self.readers = graph.consumers()
        self.position = {name: i for i, name in enumerate(graph.nodes)}
        self.awaited: set[str] = set()
        for node in graph:
            if node.control_inputs or node.colocate_with:
                self.awaited.update(node.control_inputs, node.colocate_with)
        self.pinned = self.awaited | roots.targets

    def sole_reader(self, node: Node) -> Node | None:
        """The node that alone needs ``node``, through its first output and on its device; None if there is no such."""
        readers = self.readers.get(node[0], ())
        if len(readers) != 1 or node.name in self.pinned or node[0] in self.roots.fetches:
            return None
        return readers[0] if readers[0].device == node.device else None

    def stand_before(self, nodes: Iterable[Node], place: Node) -> bool:
        """Whether all that ``nodes`` read or wait for stands before ``place`` in the graph."""
        end = self.position[place.name]
        return all(self.position[name] < end for node in nodes for name in needed_by(node))


def needed_by(node: Node) -> Iterable[str]:
    """Names of the nodes that must have run before this one."""
    return (*(tensor.node for tensor in node.inputs), *node.control_inputs)


def other_operand(node: Node, tensor: Tensor) -> Tensor | None:
    """What a node with two inputs reads beside ``tensor``; None where it reads that twice."""
    others = [each for each in node.inputs if each != tensor]
    return others[0] if others else None


def merged(
    members: Sequence[Node],
    name: str,
    op: str,
    inputs: Sequence[Tensor],
    attributes: Mapping[str, Any],
    outputs: Sequence[TensorSpec],
) -> Node:
    """One node in the place of ``members``: the device and layer of the first, and what any of them waits for.

    None of them waits for another.
    """
    waited_for = dict.fromkeys(name for member in members for name in member.control_inputs)
    first = members[0]
    return Node(name, op, tuple(inputs), attributes, tuple(outputs), first.device, tuple(waited_for), (), first.layer)


def exchange(graph: Graph, exchanged: Mapping[str, Node | None], moved: Mapping[Tensor, Tensor]) -> Graph:
    """Return the graph with each node of ``exchanged`` replaced at its place, or left out where that is None.

    moved: tensors to be read elsewhere.
    """
    result = Graph()
    for node in graph:
        new = exchanged.get(node.name, node)
        if new is not None:
            result.insert(rewired(new, moved))
    return result


def rewired(node: Node, moved: Mapping[Tensor, Tensor]) -> Node:
    """The node, reading moved tensors where they are now. An assign goes on to name its variable."""
    if not moved or moved.keys().isdisjoint(node.inputs):
        return node
    named = node.inputs[:1] if node.op == "assign" else ()
    return replace(node, inputs=(*named, *(moved.get(tensor, tensor) for tensor in node.inputs[len(named) :])))


def fresh_name(taken: Collection[str], wanted: str) -> str:
    """``wanted``, or with a number behind it where that is taken."""
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name
