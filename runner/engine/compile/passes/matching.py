"""Rewrite rules: the nodes to find (``before``) and the nodes that replace them (``after``), as texts in one notation.

    Rule("y = relu(conv2d(x, w))", "y = conv2d_fused(x, w, bias=False, residual=False, relu=True)")

A text holds one statement per node, ``OUTPUTS = OP(INPUTS, ATTRIBUTE=VALUE)``, separated by semicolons or line breaks.
Equal names denote the same tensor, ``*names`` stands for any number of tensors, and ``_`` for any tensor. Calls may be
nested. An attribute in ``before`` must have the stated value. A cast in ``after`` to the dtype of its input is omitted.

A rule applies if all of the following conditions hold:

- All matched nodes are on one device, and no other match has replaced one of them.
- A tensor that only ``before`` names is neither fetched nor read by other nodes. A tensor that both texts name keeps
  its shape and dtype; its readers read the new tensor.
- If a matched node is a target, or if other nodes wait for it, a new node of its name computes the same tensors.
- The op of each new node accepts its inputs, and all nodes that the new node needs precede it in the graph.

A new node has those attributes of the replaced nodes that its op accepts, and the attributes in ``after``, whose
values may be ``t.dtype`` or ``len(names)``. A new node also has the name of the node that computed its first output,
the position of the first node that computed one of its outputs, the layer of the first matched node, and the control
inputs of all matched nodes. Three keywords change this: ``like=t`` copies name and layer from the node that computed t;
``at=t`` copies position and control inputs; ``name="part"`` appends ``/part`` to the name of the old node at the
position of the new one.
"""

import ast
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from runner.engine.compile.passes.rewriting import Moved, Rewrite, Roots, Uses, followed, fresh_name, origin_of, rewired
from runner.engine.graph import Graph, Node, ShapeError, Tensor, TensorSpec
from runner.engine.graph import op as op_table

ANY = "_"
COMMUTATIVE = frozenset({"add", "mul"})

Bound = Mapping[str, tuple[Tensor, ...]]
"""Name in a text -> the tensors bound to this name: one, or any number for a starred name."""

Accept = Callable[[Node, Sequence[TensorSpec]], bool]
"""A function that accepts or rejects a replacement, given its last node and the specs of this node's inputs."""


@dataclass(frozen=True)
class Statement:
    """A statement of a text, which describes a node. attributes: literals, or expressions that depend on the match."""

    op: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Match:
    """The nodes that match ``before``, the nodes that match ``given``, and the tensors bound to names."""

    graph: Graph
    nodes: tuple[Node, ...]
    given: tuple[Node, ...]
    tensors: Bound

    def node(self, name: str) -> Node:
        """Return the node that computes the tensor bound to ``name``."""
        return self.graph.nodes[self.tensors[name][0].node]

    def spec(self, name: str) -> TensorSpec:
        """Return the shape and dtype of the tensor bound to ``name``."""
        return self.graph.spec(self.tensors[name][0])

    def value(self, stated: Any) -> Any:
        """Return the value of an attribute as stated in ``after``: ``t.dtype``, ``len(names)`` or a literal."""
        match stated:
            case ast.Attribute(ast.Name(name), "dtype"):
                return self.spec(name).dtype
            case ast.Call(ast.Name("len"), [ast.Name(name)]):
                return len(self.tensors[f"*{name}"])
        return stated


@dataclass(frozen=True)
class Rule:
    """A rule to replace ``before`` by ``after``. given: nodes that must match too, and stay. where: a condition."""

    before: str
    after: str
    given: str = ""
    where: Callable[[Match], bool] = lambda match: True

    @property
    def statements(self) -> tuple[Sequence[Statement], Sequence[Statement], Sequence[Statement]]:
        """The statements of ``before``, ``given`` and ``after``."""
        return parse(self.before), parse(self.given), parse(self.after)


def rewrite(
    graph: Graph, roots: Roots, rules: Sequence[Rule], *, from_end: bool = False, accept: Accept | None = None
) -> Rewrite:
    """Apply rules until none applies; if several rules match with the same first node, the first rule applies.

    from_end: of two matches that share a node, prefer the one whose first node comes later in the graph.
    """
    total: Moved = {}
    while True:
        walk = _Walk(graph, roots, accept)
        walk.apply(rules, from_end)
        if not walk.removed:
            return graph, total
        graph, roots, total = walk.result(), roots.after(walk.moved), followed(total, walk.moved)


@cache
def parse(text: str) -> Sequence[Statement]:
    """Return the statements of a text; nested calls come before the statement that reads them."""
    found: list[Statement] = []
    for line in ast.parse("\n".join(map(str.strip, text.split("\n")))).body:
        match line:
            case ast.Assign([target], ast.Call() as call):
                targets = target.elts if isinstance(target, ast.Tuple) else [target]
                _add_call(found, call, tuple(map(ast.unparse, targets)))
            case _:
                raise ValueError(f"rule {ast.unparse(line)!r}: expected OUTPUTS = OP(INPUTS, ATTRIBUTE=VALUE)")
    return found


def _add_call(found: list[Statement], call: ast.Call, outputs: tuple[str, ...]) -> None:
    inputs = []
    for argument in call.args:
        name = ast.unparse(argument)
        if isinstance(argument, ast.Call):
            _add_call(found, argument, (name,))
        inputs.append(name)
    attributes = {str(each.arg): _stated(each.value) for each in call.keywords}
    found.append(Statement(ast.unparse(call.func), outputs, tuple(inputs), attributes))


def _stated(value: ast.expr) -> Any:
    """Return an attribute's value: the value of a literal, the name of a tensor, or an unevaluated expression."""
    if isinstance(value, ast.Name):
        return value.id
    return value if isinstance(value, ast.Attribute | ast.Call) else ast.literal_eval(value)


def _unified(statement: Statement, node: Node, bound: Bound) -> Iterator[Bound]:
    """Yield the bindings of names with which the node matches the statement."""
    if node.op != statement.op or any(node.attributes.get(key) != v for key, v in statement.attributes.items()):
        return
    orders = [node.inputs, node.inputs[::-1]] if node.op in COMMUTATIVE else [node.inputs]
    for outputs in _bound(statement.outputs, node.tensors, bound):
        for inputs in orders:
            yield from _bound(statement.inputs, inputs, outputs)


def _bound(names: Sequence[str], tensors: tuple[Tensor, ...], known: Bound) -> Iterator[Bound]:
    """Yield the extensions of ``known`` that bind the names to the tensors in the given order."""
    if not names:
        if not tensors:
            yield known
        return
    name, *rest = names
    for count in range(len(tensors) + 1) if name.startswith("*") else (1,):
        taken = tensors[:count]
        if len(taken) == count and (name == ANY or known.get(name, taken) == taken):
            yield from _bound(rest, tensors[count:], known if name == ANY else {**known, name: taken})


class _Walk:
    """The matches of one walk through a graph, no two of which remove the same node.

    placed: name of a removed node -> pairs of a new node at its position and all new tensors of the same replacement.
    """

    def __init__(self, graph: Graph, roots: Roots, accept: Accept | None) -> None:
        self.graph, self.roots, self.accept = graph, roots, accept
        self.uses = Uses(graph, roots)
        self.removed: set[str] = set()
        self.placed: dict[str, list[tuple[Node, Collection[Tensor]]]] = defaultdict(list)
        self.moved: Moved = {}

    def apply(self, rules: Sequence[Rule], from_end: bool) -> None:
        """Find matches and build their replacements."""
        by_op: dict[str, list[Rule]] = defaultdict(list)
        for rule in rules:
            by_op[rule.statements[0][0].op].append(rule)
        for node in reversed(list(self.graph)) if from_end else self.graph:
            for rule in by_op.get(node.op, ()):
                if node.name not in self.removed:
                    self._apply(rule, node)

    def result(self) -> Graph:
        """Return the graph in which the new nodes replace the removed nodes."""
        result: list[Node] = []
        for old in self.graph:
            for new, own in self.placed.get(old.name, ()):
                moved = {t: self.moved[t] for t in new.inputs if t in self.moved and t not in own}
                result.append(rewired(new, moved))
            if old.name not in self.removed:
                result.append(rewired(old, self.moved))
        return Graph.of(result)

    def _apply(self, rule: Rule, first: Node) -> None:
        before, given, _ = rule.statements
        for nodes, tensors in self._matches((*before, *given), {}, (), [first]):
            match = Match(self.graph, nodes[: len(before)], nodes[len(before) :], tensors)
            replacement = _Replacement(self.uses, rule, match)
            if rule.where(match) and replacement.fits():
                if self.accept is not None and not self.accept(*replacement.last):
                    continue
                self.removed.update(node.name for node in match.nodes)
                self.moved.update((old, now) for old, now in replacement.moved.items() if old != now)
                for place, new in replacement.new:
                    self.placed[place.name].append((new, replacement.specs))
                return

    def _matches(
        self, statements: Sequence[Statement], bound: Bound, nodes: tuple[Node, ...], candidates: Sequence[Node]
    ) -> Iterator[tuple[tuple[Node, ...], Bound]]:
        """Yield one node per statement, and the bindings of names. candidates: nodes to try for the first statement."""
        first, *rest = statements
        for node in candidates:
            if node in nodes or node.name in self.removed or node.device != (*nodes, node)[0].device:
                continue
            for more in _unified(first, node, bound):
                if rest:
                    yield from self._matches(rest, more, (*nodes, node), self._candidates(rest[0], more))
                else:
                    yield (*nodes, node), more

    def _candidates(self, statement: Statement, bound: Bound) -> Sequence[Node]:
        """Return the node that computes a known output of a statement, or the nodes that read a known input."""
        for name in statement.outputs:
            if name in bound:
                return [self.graph.nodes[bound[name][0].node]]
        known = next(bound[name][0] for name in statement.inputs if name in bound)
        return self.uses.readers.get(known, ())


class _Replacement:
    """The replacement of a match.

    new: pairs of an old node and a new node at its position. moved: old -> new, for tensors that both texts name.
    specs: specs of all tensors of new nodes.
    """

    def __init__(self, uses: Uses, rule: Rule, match: Match) -> None:
        self.uses, self.match = uses, match
        before, _, self.after = rule.statements
        self.new: list[tuple[Node, Node]] = []
        self.moved: Moved = {}
        self.specs: dict[Tensor, TensorSpec] = {}
        self._tensors: Bound = dict(match.tensors)
        computed = {name for statement in before for name in statement.outputs} - {ANY}
        self._old = {name: match.tensors[name] for name in computed}

    @property
    def last(self) -> tuple[Node, Sequence[TensorSpec]]:
        """The last new node, and the specs of its inputs."""
        _, node = self.new[-1]
        return node, [self._spec(tensor) for tensor in node.inputs]

    def fits(self) -> bool:
        """Build the new nodes; return whether they can replace the old ones."""
        return all(self._build(each) for each in self.after) and self._outside_sees_no_change() and self._is_in_order()

    def _build(self, statement: Statement) -> bool:
        """Add the new node of a statement; return False if its op rejects the inputs."""
        inputs = tuple(tensor for name in statement.inputs for tensor in self._tensors[name])
        specs, attributes = [self._spec(tensor) for tensor in inputs], self._attributes(statement)
        if statement.op == "cast" and specs[0].dtype == attributes["dtype"]:
            self._tensors = {**self._tensors, statement.outputs[0]: inputs}
            return True
        try:
            outputs = op_table.lookup(statement.op).output_specs(specs, attributes)
        except ShapeError:
            return False
        like, at = (statement.attributes.get(keyword) for keyword in ("like", "at"))
        places = [self.match.graph.nodes[t.node] for name in statement.outputs for t in self._old.get(name, ())]
        place = self.match.node(at) if at else min(places, key=lambda node: self.match.graph.position(node.name))
        waiting = [place] if at else self.match.nodes
        controls = tuple(dict.fromkeys(name for node in waiting for name in node.control_inputs))
        layer = (self.match.node(like) if like else self.match.nodes[0]).layer
        where = (place.device, controls, (), *origin_of(layer, self.match.nodes))
        node = Node(self._name(statement, place), statement.op, inputs, attributes, outputs, *where)
        self.new.append((place, node))
        self.specs.update(zip(node.tensors, outputs, strict=True))
        (bound,) = _bound(statement.outputs, node.tensors, {})
        for name in bound.keys() & self._old.keys():
            self.moved.update(zip(self._old[name], bound[name], strict=True))
        self._tensors = {**self._tensors, **bound}
        return True

    def _outside_sees_no_change(self) -> bool:
        graph, inside = self.match.graph, {node.name for node in self.match.nodes}
        gone = [tensor for node in self.match.nodes for tensor in node.tensors if tensor not in self.moved]
        pinned = [node for node in self.match.nodes if node.name in self.uses.pinned]
        return (
            self.uses.roots.fetches.isdisjoint(gone)
            and all(reader.name in inside for tensor in gone for reader in self.uses.readers.get(tensor, ()))
            and all(graph.spec(old) == self.specs[now] for old, now in self.moved.items())
            and all(self.moved.get(tensor) == tensor for node in pinned for tensor in node.tensors)
        )

    def _is_in_order(self) -> bool:
        """Return whether new nodes follow the nodes they need, and keep the control inputs of matched nodes."""
        position, inside = self.match.graph.position, {node.name for node in self.match.nodes}
        read = {tensor.node for _, node in self.new for tensor in node.inputs}
        bypassed = [node for node in self.match.given if node.name not in read]
        waited_for = {name for _, node in self.new for name in node.control_inputs}
        return all(waited_for.issuperset(node.control_inputs) for node in (*self.match.nodes, *bypassed)) and all(
            name not in inside and position(name) < position(place.name)
            for place, node in self.new
            for name in (*(t.node for t in node.inputs if t not in self.specs), *node.control_inputs)
        )

    def _spec(self, tensor: Tensor) -> TensorSpec:
        return self.specs.get(tensor) or self.match.graph.spec(tensor)

    def _attributes(self, statement: Statement) -> dict[str, Any]:
        definition = op_table.lookup(statement.op)
        attributes = {key: value for node in self.match.nodes for key, value in node.attributes.items()}
        attributes |= {key: self.match.value(stated) for key, stated in statement.attributes.items()}
        taken = {key: value for key, value in attributes.items() if key in definition.attributes}
        return definition.canonical(taken)

    def _name(self, statement: Statement, place: Node) -> str:
        if "name" in statement.attributes:
            return fresh_name(self.match.graph.nodes, f"{place.name}/{statement.attributes['name']}")
        return self.match.node(statement.attributes.get("like") or statement.outputs[0]).name
