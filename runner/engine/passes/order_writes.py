"""Everyone who reads a variable runs before it is overwritten: control edges for variables that live in place.

In a step a variable reads as it was at the start, and an ``assign`` replaces it. Where variables have memory of their
own, that is a matter of order: first all reads, also those through aliases, then the write. The write is the assign;
or it is the element-wise node whose result nobody but assigns needs, because that can then be computed right in the
variable's memory; the same holds where that node computes a product of matrices on its way.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from runner.engine.graph import Graph, Node
from runner.engine.op import ShapeError
from runner.engine.passes.layouts import ALIASES
from runner.engine.passes.rewriting import fresh_name, needed_by, rewired
from runner.engine.tensor import Tensor

UPDATES = frozenset({"elementwise", "matmul_elementwise"})
"""Ops that fused updates of variables are."""


def order_writes(graph: Graph) -> Graph:
    """Return the graph with every read of a variable before its write, in a topological order near the old one.

    Readers of an assign's output read the assigned value itself. An assigned value that is a variable's own tensor,
    or an alias of one, is copied first (op ``convert``). Raises ShapeError naming the variable and both nodes where a
    read has to run after the write.
    """
    separate, readers = _with_values_of_their_own(graph)
    order = _Order(separate)
    assigns = [node for node in separate if node.op == "assign"]
    for assign in assigns:
        order.let_wait(assign.name, readers[assign.inputs[0].node])
    for assign in assigns:
        order.refuse_cycle(assign, readers[assign.inputs[0].node])
    consumers = separate.consumers()
    for assign in assigns:
        producer = separate.nodes[assign.inputs[1].node]
        if _may_write(producer, assign, consumers[assign.inputs[1]]):
            order.let_producer_write(producer, assign, readers[assign.inputs[0].node])
    return order.sorted_graph()


def _with_values_of_their_own(graph: Graph) -> tuple[Graph, Mapping[str, list[str]]]:
    """The graph with copies where a variable's own tensor is assigned, and the readers of each variable.

    An alias counts as a reader too: whether it costs a copy is the planner's business.
    """
    result = Graph()
    moved: dict[Tensor, Tensor] = {}
    variable_of: dict[Tensor, str] = {}
    readers: dict[str, list[str]] = defaultdict(list)
    for old in graph:
        node = rewired(old, moved)
        if node.op == "assign":
            if node.inputs[1] in variable_of:
                copy = result.insert(_copied(graph, node))
                readers[variable_of[node.inputs[1]]].append(copy.name)
                node = replace(node, inputs=(node.inputs[0], copy[0]))
            moved[node[0]] = node.inputs[1]
        elif node.op == "variable":
            variable_of[node[0]] = node.name
        else:
            read = {variable_of[tensor] for tensor in node.inputs if tensor in variable_of}
            for variable in read:
                readers[variable].append(node.name)
            if read and node.op in ALIASES:
                variable_of[node[0]] = variable_of[node.inputs[0]]
        result.insert(node)
    return result, readers


def _copied(graph: Graph, assign: Node) -> Node:
    value = assign.inputs[1]
    name = fresh_name(graph.nodes, f"{assign.name}/copy")
    return Node(name, "convert", (value,), {}, assign.outputs, assign.device, layer=assign.layer)


def _may_write(producer: Node, assign: Node, consumers: Iterable[Node]) -> bool:
    """Whether an assigned value can be computed in the variable's memory, if nobody needs the old value any more."""
    nobody_else = all(node.op == "assign" for node in consumers)
    return producer.op in UPDATES and producer.device == assign.device and nobody_else


@dataclass
class _Order:
    """Who waits for whom: the edges of a graph and those added, which never make a cycle unnoticed."""

    graph: Graph

    def __post_init__(self) -> None:
        self.position = {name: i for i, name in enumerate(self.graph.nodes)}
        self.added: dict[str, dict[str, None]] = defaultdict(dict)
        self.followers: dict[str, list[str]] = defaultdict(list)
        for node in self.graph:
            for name in needed_by(node):
                self.followers[name].append(node.name)

    def let_wait(self, name: str, before: Iterable[str]) -> None:
        """Let the node ``name`` run after those of ``before``."""
        for other in before:
            self.added[name][other] = None
            self.followers[other].append(name)

    def refuse_cycle(self, assign: Node, readers: Iterable[str]) -> None:
        """Raise ShapeError when one of the readers of the assigned variable has to wait for the assign."""
        # On a circle of edges at least one leads back; only those need a closer look.
        late = [reader for reader in readers if self.position[reader] > self.position[assign.name]]
        for reader in late:
            if self.leads_to(assign.name, {reader}):
                raise ShapeError(
                    f"variable {assign.inputs[0].node!r}: node {reader!r} reads its value from the start of the "
                    f"step, but has to run after node {assign.name!r}, which replaces it; let {reader!r} read the "
                    f"output of {assign.name!r} for the new value, or not wait for it"
                )

    def let_producer_write(self, producer: Node, assign: Node, readers: Iterable[str]) -> None:
        """Let the producer of the assigned value wait in the assign's place, where that makes no cycle."""
        others = [name for name in readers if name != producer.name]
        if not self.leads_to(producer.name, set(others)):
            self.added.pop(assign.name, None)
            self.let_wait(producer.name, others)

    def leads_to(self, start: str, ends: Collection[str]) -> bool:
        """Whether a path of edges runs from ``start`` to one of ``ends``."""
        seen, stack = {start}, [start]
        while stack:
            for name in self.followers.get(stack.pop(), ()):
                if name in ends:
                    return True
                if name not in seen:
                    seen.add(name)
                    stack.append(name)
        return False

    def sorted_graph(self) -> Graph:
        """The graph with the added edges: always the first node in the old order that waits for nothing more."""
        nodes = {node.name: self._waiting(node) for node in self.graph}
        missing = {name: len(set(needed_by(node))) for name, node in nodes.items()}
        followers: dict[str, list[str]] = defaultdict(list)
        for node in nodes.values():
            for name in set(needed_by(node)):
                followers[name].append(node.name)
        ready = [(self.position[name], name) for name, count in missing.items() if count == 0]
        result = Graph()
        while ready:
            _, name = heapq.heappop(ready)
            result.insert(nodes[name])
            for follower in followers.get(name, ()):
                missing[follower] -= 1
                if missing[follower] == 0:
                    heapq.heappush(ready, (self.position[follower], follower))
        return result

    def _waiting(self, node: Node) -> Node:
        added = self.added.get(node.name)
        if not added:
            return node
        return replace(node, control_inputs=tuple(dict.fromkeys((*node.control_inputs, *added))))
