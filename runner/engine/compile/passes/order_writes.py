"""Control edges that make all reads of a variable run before its write.

In a step, reads of a variable return its value at the start of the step, and an ``assign`` replaces this value. A
variable has memory for one value, so all reads, including reads through aliases, must run before the write. Usually,
the assign is the write. If only assigns read the result of an update, the update itself may write to this memory.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from runner.engine.compile.passes.rewriting import ALIASES, fresh_name, rewired, sorted_by_need
from runner.engine.graph import Graph, Node, ShapeError, Tensor

UPDATES = frozenset({"elementwise", "matmul_elementwise", "put_rows"})
"""Ops of updates that can compute in the memory of a variable."""


def order_writes(graph: Graph) -> Graph:
    """Return the graph with every read of a variable before its write, in a topological order close to the old one.

    Readers of an assign's output now read the assigned value itself. If the assigned value is the tensor of a variable,
    or an alias of one, it is copied first (op ``convert``). Raises ShapeError naming the variable, the reader and the
    assign if a reader has to run after the assign.
    """
    separate, readers = _with_copies_of_assigned_variables(graph)
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


def _with_copies_of_assigned_variables(graph: Graph) -> tuple[Graph, Mapping[str, list[str]]]:
    """Return the graph, with each assigned tensor of a variable copied first, and the readers of each variable.

    An alias of a variable counts as a reader too, because the planner may copy the alias.
    """
    result = Graph()
    moved: dict[Tensor, Tensor] = {}
    variable_of: dict[Tensor, str] = {}
    readers: dict[str, list[str]] = defaultdict(list)
    for old in graph:
        node = rewired(old, moved)
        if node.op == "assign":
            if node.inputs[1] in variable_of:
                name = fresh_name(graph.nodes, f"{node.name}/copy")
                copy = Node(name, "convert", node.inputs[1:], {}, node.outputs, node.device, layer=node.layer)
                result.insert(copy)
                readers[variable_of[node.inputs[1]]].append(copy.name)
                node = node.changed(inputs=(node.inputs[0], copy[0]))
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


def _may_write(producer: Node, assign: Node, consumers: Iterable[Node]) -> bool:
    """Return whether the assigned value can be computed in the variable's memory once all reads have run."""
    is_update = producer.op in UPDATES and producer.device == assign.device
    # Checked last, because a constant can be the initial value of thousands of variables.
    return is_update and all(node.op == "assign" for node in consumers)


@dataclass
class _Order:
    """The edges of a graph and the added control edges; detects added edges that would close a cycle."""

    graph: Graph

    def __post_init__(self) -> None:
        self.added: dict[str, dict[str, None]] = defaultdict(dict)
        self.followers: dict[str, list[str]] = defaultdict(list)
        for node in self.graph:
            for name in node.needed:
                self.followers[name].append(node.name)

    def let_wait(self, name: str, before: Iterable[str]) -> None:
        """Add control edges that make the node ``name`` run after the nodes ``before``."""
        for other in before:
            self.added[name][other] = None
            self.followers[other].append(name)

    def refuse_cycle(self, assign: Node, readers: Iterable[str]) -> None:
        """Raise ShapeError if a reader of the assigned variable has to wait for the assign."""
        # A cycle contains an edge that leads back in the graph, from a reader to an earlier assign.
        late = [reader for reader in readers if self.graph.position(reader) > self.graph.position(assign.name)]
        for reader in late:
            if self.leads_to(assign.name, {reader}):
                raise ShapeError(
                    f"variable {assign.inputs[0].node!r}: node {reader!r} reads its value from the start of the "
                    f"step, but has to run after node {assign.name!r}, which replaces it; let {reader!r} read the "
                    f"output of {assign.name!r} for the new value, or remove its dependency on {assign.name!r}"
                )

    def let_producer_write(self, producer: Node, assign: Node, readers: Iterable[str]) -> None:
        """Make the producer of the assigned value, not the assign, wait for the readers, unless this closes a cycle."""
        others = [name for name in readers if name != producer.name]
        if not self.leads_to(producer.name, set(others)):
            self.added.pop(assign.name, None)
            self.let_wait(producer.name, others)

    def leads_to(self, start: str, ends: Collection[str]) -> bool:
        """Return whether a path leads from ``start`` to one of ``ends``."""
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
        """Return the graph with the added edges; of several ready nodes, the first in the old order comes next."""
        if not self.added:
            return self.graph
        nodes = dict(self.graph.nodes)
        for name, added in self.added.items():
            controls = dict.fromkeys((*nodes[name].control_inputs, *added))
            nodes[name] = nodes[name].changed(control_inputs=tuple(controls))
        order = sorted_by_need({name: set(node.needed) for name, node in nodes.items()}, self.graph.position)
        return Graph.of(nodes[name] for name in order)
