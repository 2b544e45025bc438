"""A text notation for graphs, and test cases that give the graphs before and after a pass.

A text has one statement per node: ``OUTPUTS = OP(INPUTS, ATTRIBUTE=VALUE)``. The first of OUTPUTS names the node; a
node without OUTPUTS has the name of its op. ``__`` in a name means "/". ``x = input(2, 3)`` is a placeholder and
``w = weights(2, 3)`` a variable. Attributes in DEFAULTS may be omitted; the default of ``dtype`` is the dtype of the
first input. ``on``, ``after``, ``beside`` and ``layer`` set a node's device, control inputs, colocation and layer; with
``recomputed=True`` the layer may be recomputed, and with ``backward=True`` the node belongs to a backward pass.
"""

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.compile.passes.rewriting import Moved, Rewrite, Roots
from runner.engine.graph import Graph, LayerStamp, Node, Tensor
from runner.engine.graph import op as op_table
from runner.engine.graph.verify import verify
from tests.oracles import evaluate

Array = NDArray[Any]


def counts(graph: Graph) -> Counter[str]:
    """Return the number of nodes of each op."""
    return Counter(node.op for node in graph)


def assigned_values(graph: Graph) -> dict[str, Tensor]:
    """Return a map from the name of each assign node to the tensor that it assigns."""
    return {node.name: node.inputs[1] for node in graph if node.op == "assign"}


def roots_of(graph: Graph, fetches: Sequence[Tensor]) -> Roots:
    """Return the fetches and the assign nodes of a graph as its roots."""
    return Roots.of(fetches, assigned_values(graph))


def outcome(graph: Graph, fetches: Sequence[Tensor], feeds: Mapping[Tensor, Array]) -> list[Array]:
    """Return the reference values of the fetches, then of the assigned tensors in order of the assign nodes' names."""
    assigned = [tensor for _, tensor in sorted(assigned_values(graph).items())]
    with np.errstate(all="ignore"):
        return evaluate(graph, [*fetches, *assigned], feeds)


def assert_unchanged(
    before: Graph, after: Graph, moved: Moved, fetches: Sequence[Tensor], feeds: Mapping[Tensor, Array]
) -> None:
    """Assert that both graphs have assign nodes of the same names and equal bits of fetched and assigned values."""
    verify(after)
    assert assigned_values(before).keys() == assigned_values(after).keys()
    assert_outcome(after, [moved.get(t, t) for t in fetches], feeds, outcome(before, fetches, feeds))


def assert_outcome(
    graph: Graph, fetches: Sequence[Tensor], feeds: Mapping[Tensor, Array], expected: Sequence[Array]
) -> None:
    """Assert that the fetched and assigned values equal the expected ones bit for bit."""
    for a, b in zip(expected, outcome(graph, fetches, feeds), strict=True):
        assert_same_bits(a, b)


def assert_same_bits(a: Array, b: Array) -> None:
    """Assert that dtypes, shapes and bits are equal; all NaNs count as equal."""
    np.testing.assert_array_equal(a, b, strict=True)
    if a.dtype.kind in "fV":
        numbers = ~np.isnan(a)
        np.testing.assert_array_equal(np.signbit(a)[numbers], np.signbit(b)[numbers])


HERE, THERE, FAR = (f"/job:worker/task:{task}/device:cpu:0" for task in (0, 1, 2))
DEVICES = {"here": HERE, "there": THERE, "far": FAR}
DEFAULTS: dict[str, Any] = {
    "strides": (1, 1),
    "padding": (0, 0, 0, 0),
    "dilations": (1, 1),
    "groups": 1,
    "transpose_a": False,
    "transpose_b": False,
    "bias": False,
    "residual": False,
    "relu": False,
    "keepdims": False,
    "epsilon": 1e-3,
}


@dataclass
class Text:
    """A graph parsed from text. tensors: the tensors by name. last: the node of the last statement."""

    graph: Graph
    tensors: dict[str, Tensor]
    last: Node

    @classmethod
    def parse(cls, text: str, dtype: str = "float32") -> "Text":
        """Parse a text. dtype: the dtype of inputs and weights whose statements have no dtype."""
        found = cls(Graph(), {}, Node("", "", (), {}, ()))
        for line in ast.parse("\n".join(map(str.strip, text.splitlines()))).body:
            assert isinstance(line, ast.Assign | ast.Expr), ast.unparse(line)
            assert isinstance(line.value, ast.Call), ast.unparse(line)
            outputs = ast.unparse(line.targets[0]) if isinstance(line, ast.Assign) else ast.unparse(line.value.func)
            found._add(outputs.strip("()").replace("__", "/").split(", "), line.value, dtype)
        return found

    def names(self, text: str) -> list[Tensor]:
        """Return the tensors with the given names, which are separated by spaces."""
        return [self.tensors[name] for name in text.split()]

    def _add(self, outputs: Sequence[str], call: ast.Call, dtype: str) -> None:
        op, given = ast.unparse(call.func), {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        inputs: list[Tensor] = []
        if op in ("input", "weights"):
            op = {"input": "placeholder", "weights": "variable"}[op]
            given = {"shape": tuple(map(ast.literal_eval, call.args)), "dtype": dtype, **given}
        else:
            inputs = [self.tensors[ast.unparse(each).replace("__", "/")] for each in call.args]
        with ExitStack() as around:
            device = given.pop("on", "")
            around.enter_context(self.graph.device(DEVICES.get(device, device)))
            around.enter_context(self.graph.control_dependencies(given.pop("after", "").split()))
            layer, recomputed = given.pop("layer", None), given.pop("recomputed", False)
            around.enter_context(self.graph.layer(LayerStamp(layer, "any", recomputed) if layer else None))
            if given.pop("backward", False):
                around.enter_context(self.graph.backward())
            beside = given.pop("beside", "").split()
            taken = op_table.lookup(op).attributes
            own_dtype = {"dtype": self.graph.spec(inputs[0]).dtype} if inputs else {}
            defaults = {key: value for key, value in (DEFAULTS | own_dtype).items() if key in taken}
            self.last = self.graph.add(op, inputs, {**defaults, **given}, name=outputs[0], colocate_with=beside)
        self.tensors.update(zip(outputs, self.last.tensors, strict=False))


@dataclass(frozen=True)
class Case:
    """The texts of a graph before and after a pass, the roots of the graph, and the tensors that are fed.

    after: None if the pass does not change the graph. fetch: names of tensors, by default the outputs of the last node.
    targets: names of nodes. dtype: default dtype of inputs and weights. feed: names of tensors (only for ``prune``).
    """

    before: str
    after: str | None = None
    fetch: str = ""
    targets: str = ""
    dtype: str = "float32"
    feed: str = ""


def check(
    case: Case,
    run: Callable[[Graph, Roots], Rewrite],
    inputs: str = "",
    same_bits: bool = True,
    values: Callable[[Graph], dict[Tensor, Array]] | None = None,
) -> None:
    """Check that a pass turns ``case.before`` into ``case.after``, and that a second run changes nothing.

    inputs: statements that precede both texts. same_bits: also compare the results
    bit for bit. values: makes the inputs; ``drawn`` by default.
    """
    before = Text.parse(f"{inputs}\n{case.before}", case.dtype)
    fetches = before.names(case.fetch) if case.fetch else list(before.last.tensors)
    roots = Roots.of(fetches, case.targets.split())
    result, moved = run(before.graph, roots)
    expected = before if case.after is None else Text.parse(f"{inputs}\n{case.after}", case.dtype)
    assert list(result) == list(expected.graph)
    if case.after is None:
        assert moved == {}
    assert all(old != new for old, new in moved.items())
    verify(result)
    if same_bits:
        assert_unchanged(before.graph, result, moved, fetches, (values or drawn)(before.graph))
    again, others = run(result, roots.after(moved))
    assert list(again) == list(result)
    assert others.keys().isdisjoint(roots.after(moved).fetches)


def drawn(graph: Graph) -> dict[Tensor, Array]:
    """Draw values of placeholders and variables from the standard normal distribution."""
    rng = np.random.default_rng(0)
    sources = [node for node in graph if node.op in ("placeholder", "variable")]
    return {node[0]: rng.standard_normal(node.outputs[0].shape).astype(node.outputs[0].dtype) for node in sources}
