"""Fusion of groups of element-wise nodes into single nodes that read each input and write each output once."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.engine.compile.passes.rewriting import Moved, Rewrite, Roots, Uses, filled_with, origin_of, rewired
from runner.engine.graph import Graph, Node, Tensor
from runner.kernels.elementwise import FUNCTIONS, Operand, Program, Step

MAX_STEPS = 64
"""Largest number of steps of an element-wise program, which limits the size of the loop that executes the program."""


def fuse_elementwise(graph: Graph, roots: Roots) -> Rewrite:
    """Return the graph with groups of element-wise nodes fused, and the tensors that have moved.

    All nodes of a group have the same shape, dtype and device. A node joins the group of its readers if all readers,
    except assigns, are in that group. So the updates of a variable and of its optimizer slots form one group. The fused
    node has the name and position of the group's last node, whose value is output 0.
    """
    uses = Uses(graph, roots)
    fused: dict[str, Node | None] = {}
    moved: Moved = {}
    for group in _groups(uses):
        if len(group.members) > 1:
            outputs = [member for member in group.members if member is group.last or _is_output(uses, member)]
            fused.update(dict.fromkeys(member.name for member in group.members))
            fused[group.last.name] = _fused(graph, group, outputs)
            moved.update((node[0], Tensor(group.last.name, port)) for port, node in enumerate(outputs) if port > 0)
    return _exchange(graph, fused, moved), moved


@dataclass
class _Group:
    """Nodes to fuse, from the last to the first in the graph, and the total number of their program steps."""

    members: list[Node]
    steps: int

    @property
    def last(self) -> Node:
        return self.members[0]

    def admits(self, node: Node, steps: int) -> bool:
        """Return whether a node has the members' output spec and device, and its steps fit into the program."""
        alike = (self.last.outputs, self.last.device) == (node.outputs, node.device)
        return alike and self.steps + steps <= MAX_STEPS


def _groups(uses: Uses) -> list[_Group]:
    groups: list[_Group] = []
    group_of: dict[str, int] = {}
    for node in reversed(list(uses.graph)):
        steps = _steps(uses.graph, node)
        if steps == 0:
            continue
        home = _home(uses, node, group_of)
        if home is None or not groups[home].admits(node, steps):
            home = len(groups)
            groups.append(_Group([], 0))
        groups[home].members.append(node)
        groups[home].steps += steps
        group_of[node.name] = home
    return groups


def _steps(graph: Graph, node: Node) -> int:
    """Return the number of program steps of a node; 0 if it cannot be part of a program."""
    if node.op in FUNCTIONS:
        steps = 1
    elif node.op == "add_n":
        steps = len(node.inputs) - 1
    else:
        return 0
    (output,) = node.outputs
    varying = [graph.spec(tensor).shape for tensor in node.inputs if filled_with(graph, tensor) is None]
    whole = output.shape in varying and all(shape in (output.shape, ()) for shape in varying)
    return steps if whole and output.is_float else 0


def _home(uses: Uses, node: Node, group_of: Mapping[str, int]) -> int | None:
    """Return the index of the group that contains all readers of a node, except assigns; None if there is none."""
    if node.name in uses.pinned:
        return None
    readers = [reader for reader in uses.readers.get(node[0], ()) if not _commits(uses, reader)]
    homes = {group_of.get(reader.name) for reader in readers}
    return homes.pop() if len(homes) == 1 else None


def _commits(uses: Uses, node: Node) -> bool:
    """Return whether a node is an assign that no node reads or waits for, so that it may run later."""
    return node.op == "assign" and node[0] not in uses.readers and node.name not in uses.awaited


def _is_output(uses: Uses, node: Node) -> bool:
    """Return whether the value of a node that is not the last of its group is fetched or assigned."""
    return node[0] in uses.roots.fetches or any(_commits(uses, reader) for reader in uses.readers[node[0]])


def _fused(graph: Graph, group: _Group, outputs: Sequence[Node]) -> Node:
    members = group.members[::-1]
    inside = {member[0] for member in members}
    operands = dict.fromkeys(tensor for member in members for tensor in member.inputs if tensor not in inside)
    inputs = [tensor for tensor in operands if filled_with(graph, tensor) is None]
    number: dict[Tensor, int] = {tensor: i for i, tensor in enumerate(inputs)}
    steps: list[Step] = []

    def operand(tensor: Tensor) -> Operand:
        literal = filled_with(graph, tensor)
        return number[tensor] if literal is None else literal

    for member in members:
        steps += _as_steps(member.op, [operand(tensor) for tensor in member.inputs], len(inputs) + len(steps))
        number[member[0]] = len(inputs) + len(steps) - 1
    program = Program(len(inputs), tuple(steps), tuple(number[node[0]] for node in outputs))
    attributes = {"program": program.text, "outputs": program.outputs}
    waited_for = dict.fromkeys(name for member in group.members for name in member.control_inputs)
    where = (group.last.device, tuple(waited_for), (), *origin_of(group.last.layer, group.members))
    specs = tuple(node.outputs[0] for node in outputs)
    return Node(group.last.name, "elementwise", tuple(inputs), attributes, specs, *where)


def _as_steps(op: str, operands: Sequence[Operand], number: int) -> list[Step]:
    """Return the steps of one node; the first step computes value ``number`` of the program."""
    if op != "add_n":
        return [Step(op, tuple(operands))]
    first, second, *others = operands
    # The terms of a sum are added from left to right.
    sums = [Step("add", (number + i, other)) for i, other in enumerate(others)]
    return [Step("add", (first, second)), *sums]


def _exchange(graph: Graph, fused: Mapping[str, Node | None], moved: Moved) -> Graph:
    """Return the graph with each fused node in place of its group's last node, and assigns after their values."""
    result: dict[str, Node] = {}
    waiting: dict[str, list[Node]] = defaultdict(list)
    for old in graph:
        node = fused.get(old.name, old)
        if node is None:
            continue
        node = rewired(node, moved)
        if node.op == "assign" and node.inputs[1].node not in result:
            waiting[node.inputs[1].node].append(node)
            continue
        result[node.name] = node
        result.update((assign.name, assign) for assign in waiting.pop(node.name, ()))
    return Graph(result)
