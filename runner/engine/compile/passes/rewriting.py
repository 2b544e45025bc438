"""Code that passes share: roots of a graph, readers of tensors, and the replacement of nodes and tensors."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property

from runner.engine.graph import Graph, LayerStamp, Node, Tensor

Moved = dict[Tensor, Tensor]
"""Old tensor -> new tensor, for the tensors that a rewrite replaces by other tensors."""

Rewrite = tuple[Graph, Moved]
"""The new graph, and the replaced tensors."""

ALIASES = frozenset({"identity", "stop_gradient", "reshape"})
"""Ops whose output is a view of their input. Devices execute nothing for these ops."""


@dataclass(frozen=True)
class Roots:
    """The results that passes must preserve: tensors to fetch, and target nodes, which run and keep their names."""

    fetches: frozenset[Tensor] = frozenset()
    targets: frozenset[str] = frozenset()

    @classmethod
    def of(cls, fetches: Iterable[Tensor], targets: Iterable[str] = ()) -> "Roots":
        """Return the roots for any iterables of fetches and targets."""
        return cls(frozenset(fetches), frozenset(targets))

    def after(self, moved: Mapping[Tensor, Tensor]) -> "Roots":
        """Return the same roots in a rewritten graph."""
        return replace(self, fetches=frozenset(moved.get(tensor, tensor) for tensor in self.fetches))


class Uses:
    """The uses of the nodes and tensors of a graph.

    readers: tensor -> the nodes that read it. awaited: names of the nodes that are control inputs or colocation
    partners of other nodes. early: names of the nodes that read a variable whose assign is awaited; a later node, which
    may have to wait for the assign, must not read the variable instead. pinned: names of the nodes that must stay:
    ``awaited``, ``early`` and the targets.
    """

    def __init__(self, graph: Graph, roots: Roots) -> None:
        self.graph = graph
        self.roots = roots

    @cached_property
    def awaited(self) -> set[str]:
        return {name for node in self.graph for name in (*node.control_inputs, *node.colocate_with)}

    @cached_property
    def early(self) -> set[str]:
        awaited = (self.graph.nodes[name] for name in self.awaited)
        overwritten = {node.inputs[0] for node in awaited if node.op == "assign"}
        if not overwritten:
            return set()
        reads = {node.name: node.inputs[1:] if node.op == "assign" else node.inputs for node in self.graph}
        return {name for name, tensors in reads.items() if any(viewed(self.graph, t) in overwritten for t in tensors)}

    @cached_property
    def pinned(self) -> Collection[str]:
        return self.awaited | self.early | self.roots.targets

    @cached_property
    def readers(self) -> dict[Tensor, list[Node]]:
        return self.graph.consumers()


def viewed(graph: Graph, tensor: Tensor) -> Tensor:
    """Return the tensor whose memory a tensor shares: the input of a chain of views, or the tensor itself."""
    while (node := graph.nodes[tensor.node]).op in ALIASES:
        tensor = node.inputs[0]
    return tensor


def filled_with(graph: Graph, tensor: Tensor) -> float | None:
    """Return the value of all elements if a ``fill`` node that waits for no node computes the tensor; else None."""
    node = graph.nodes[tensor.node]
    return node.attributes["value"] if node.op == "fill" and not node.control_inputs else None


def needed_part(graph: Graph, roots: Iterable[str], effects: Collection[str] = ()) -> Graph:
    """Return the part of a graph that the nodes ``roots`` and all nodes of the ops ``effects`` need.

    Colocation does not make a node necessary.
    """
    needed = set(roots)
    for node in reversed(graph.nodes.values()):
        if node.name in needed or node.op in effects:
            needed.add(node.name)
            needed.update(node.needed)
    return Graph.of(colocated_within(node, needed) for node in graph if node.name in needed)


def colocated_within(node: Node, names: Collection[str]) -> Node:
    """Return the node, colocated only with nodes in ``names``."""
    if all(name in names for name in node.colocate_with):
        return node
    return node.changed(colocate_with=tuple(name for name in node.colocate_with if name in names))


def sorted_by_need(needed: Mapping[str, AbstractSet[str]], rank: Callable[[str], int]) -> list[str]:
    """Return names in topological order, always the name of lowest rank that can be next.

    Names on a cycle, and names that need one of them, are omitted.
    """
    followers: dict[str, list[str]] = defaultdict(list)
    for name, before in needed.items():
        for each in before:
            followers[each].append(name)
    missing = {name: len(before) for name, before in needed.items()}
    ready = [(rank(name), name) for name, count in missing.items() if count == 0]
    heapq.heapify(ready)
    found = []
    while ready:
        name = heapq.heappop(ready)[1]
        found.append(name)
        for follower in followers[name]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, (rank(follower), follower))
    return found


def origin_of(layer: LayerStamp | None, members: Iterable[Node]) -> tuple[LayerStamp | None, bool]:
    """Return the fields ``layer`` and ``backward`` of a node that replaces ``members`` and belongs to ``layer``.

    The new node may be recomputed only if all members may be, and is a backward node if one of the members is.
    """
    if layer is not None and layer.recomputed:
        layer = replace(layer, recomputed=all(member.layer and member.layer.recomputed for member in members))
    return layer, any(member.backward for member in members)


def rewired(node: Node, moved: Mapping[Tensor, Tensor]) -> Node:
    """Return the node with replaced inputs. The variable input of an assign node is not replaced."""
    if not moved or moved.keys().isdisjoint(node.inputs):
        return node
    named = node.inputs[:1] if node.op == "assign" else ()
    return node.changed(inputs=(*named, *(moved.get(tensor, tensor) for tensor in node.inputs[len(named) :])))


def followed(first: Moved, then: Moved) -> Moved:
    """Return the combined replacements of two successive rewrites, ``first`` and ``then``."""
    return {**then, **{old: then.get(new, new) for old, new in first.items()}}


def fresh_name(taken: Collection[str], wanted: str) -> str:
    """Return ``wanted``, with a number appended if this name is in ``taken``."""
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name
