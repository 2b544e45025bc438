"""Recomputation of activations (Chen et al. 2016, "Training deep nets with sublinear memory cost").

Without this pass, an activation that the backward pass reads stays in memory from the forward pass on. With this pass,
the outputs of recomputed nodes are freed after the forward pass, and copies of these nodes compute the outputs again
directly before the backward pass reads them. A copy has the op, the attributes and the inputs of its node, so its
outputs, including the draws of dropout, are equal bit for bit.

A node may be recomputed if its layer's stamp allows it. For a fused node, the stamps of all joined nodes must allow it.
Such a node is recomputed only if its inputs are in memory in any case: outputs of other recomputed nodes, tensors that
backward nodes read, variables, inputs of the step, and sent or received tensors. So no tensor is kept only to recompute
another one. The layers between two kept tensors form a segment, whose copies are in memory together. For example, if
only normalization and activation layers are recomputed, segments are short and no convolution runs twice. If all layers
of a residual unit except its sum are recomputed, each unit is a segment.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from runner.engine.compile.passes.rewriting import ALIASES, Moved, fresh_name, rewired, viewed
from runner.engine.graph import Graph, Node, Tensor
from runner.engine.graph import op as op_table


def recompute_activations(graph: Graph, fetches: Collection[Tensor]) -> Graph:
    """Return the graph in which backward nodes read copies of recomputed nodes; no tensor moves.

    The graph must contain its transfers, so that copies read only tensors of their own device and send nothing.
    """
    if not any(node.layer is not None and node.layer.recomputed for node in graph):
        return graph
    return _Copying(graph, _recomputed_nodes(graph, fetches)).run()


def _recomputed_nodes(graph: Graph, fetches: Collection[Tensor]) -> set[str]:
    """Return the names of the nodes to recompute, and of the forward nodes that view their outputs."""
    in_transfers = {tensor for node in graph if node.op == "send" for tensor in node.inputs}
    whole_step = {viewed(graph, tensor) for tensor in (*fetches, *in_transfers)}
    in_backward_pass = {viewed(graph, tensor) for node in graph if node.backward for tensor in node.inputs}
    found: set[str] = set()

    def in_memory(tensor: Tensor) -> bool:
        return (
            tensor.node in found
            or not graph.nodes[tensor.node].inputs
            or viewed(graph, tensor) in in_backward_pass
            or viewed(graph, tensor) in whole_step
        )

    for node in graph:
        if node.op in ALIASES:
            chosen = not node.backward and node.inputs[0].node in found
        else:
            freed = _may_be_recomputed(node) and whole_step.isdisjoint(node.tensors)
            chosen = freed and all(map(in_memory, node.inputs))
        if chosen:
            found.add(node.name)
    return found


def _may_be_recomputed(node: Node) -> bool:
    definition = op_table.lookup(node.op)
    computed = definition.executed_by == "kernel" and not definition.stateful and bool(node.inputs)
    return computed and not node.backward and node.layer is not None and node.layer.recomputed


@dataclass
class _Copying:
    """A walk through a graph that inserts copies of recomputed nodes before the first backward node that reads them.

    moved: recomputed tensor -> tensor of the copy. late: names of the backward nodes with inputs, and of all nodes
    that need one. latest: device -> its last backward node so far.
    """

    graph: Graph
    recomputed: set[str]
    result: Graph = field(default_factory=Graph)
    moved: Moved = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    latest: dict[str, str] = field(default_factory=dict)

    def run(self) -> Graph:
        """Return the graph with the copies."""
        for node in self.graph:
            if node.backward:
                self._add_copies(node)
                node = rewired(node, self.moved)
            self.result.insert(node)
            # A constant of the backward pass can run at any time.
            if node.backward and node.inputs:
                self.latest[node.device] = node.name
                self.late.add(node.name)
            elif not self.late.isdisjoint(node.needed):
                self.late.add(node.name)
        return self.result

    def _add_copies(self, reader: Node) -> None:
        """Insert the missing copies that a backward node needs."""
        missing = sorted(self._missing(reader.inputs), key=self.graph.position)
        # Without control edges, the scheduler could run the copies too early, and their outputs would occupy memory.
        before = [tensor.node for tensor in reader.inputs if tensor.node in self.late]
        if not before and reader.device in self.latest:
            before = [self.latest[reader.device]]
        for name in missing:
            node = rewired(self.graph.nodes[name], self.moved)
            is_first = node.inputs == self.graph.nodes[name].inputs
            copy = node.changed(
                name=fresh_name(self.graph.nodes, f"{name}/recomputed"),
                control_inputs=tuple(dict.fromkeys((*node.control_inputs, *(before if is_first else ())))),
                colocate_with=(),
                backward=True,
            )
            self.result.insert(copy)
            pairs = zip(node.tensors, copy.tensors, strict=True)
            self.moved.update((old, new) for old, new in pairs if self._is_recomputed(old))

    def _missing(self, tensors: Iterable[Tensor]) -> set[str]:
        """Return the names of the recomputed nodes without copies that ``tensors`` need, directly or indirectly."""
        found: set[str] = set()
        stack = list(tensors)
        while stack:
            tensor = stack.pop()
            if self._is_recomputed(tensor) and tensor not in self.moved and tensor.node not in found:
                found.add(tensor.node)
                stack.extend(self.graph.nodes[tensor.node].inputs)
        return found

    def _is_recomputed(self, tensor: Tensor) -> bool:
        """Return whether a tensor is recomputed; a node's smaller outputs, such as a batch mean, are kept instead."""
        if tensor.node not in self.recomputed:
            return False
        return self.graph.spec(tensor).size >= self.graph.nodes[tensor.node].outputs[0].size
