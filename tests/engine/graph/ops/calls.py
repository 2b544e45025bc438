"""Nodes as text: ``built("matmul(f4[2, 3], f4[3, 4], transpose_a=False)")`` returns a graph with this node.

Each input is the dtype and shape of a placeholder; ``f4[()]`` is a scalar. Attributes in DEFAULTS may be omitted; the
default of ``dtype`` is the dtype of the first input.
"""

import ast
from collections.abc import Sequence

from runner.engine.graph import Graph, Node, Tensor, ops
from runner.engine.graph import op as op_table
from tests.engine.compile.passes.graph_text import DEFAULTS
from tests.oracles import evaluate
from tests.samples import Array

DTYPES = {"f4": "float32", "f8": "float64", "b2": "bfloat16", "i4": "int32", "i8": "int64", "bool": "bool"}
POOL = {"window": (2, 2), "count_padding": False}
DRAWS = {"seed": 0, "key": "drop", "rate": 0.5, "first": 0, "mean": 0.0, "stddev": 1.0, "group": "g"}
RESPONSE = {"alpha": 0.3, "beta": 0.75, "k": 1.0, "divide_by_size": False}


def built(call: str) -> tuple[Graph, Node]:
    """Return a graph with the placeholders and the node that a text describes, and this node."""
    graph, tree = Graph(), ast.parse(call, mode="eval").body
    assert isinstance(tree, ast.Call)
    op = ast.unparse(tree.func)
    inputs = [_placeholder(graph, argument) for argument in tree.args]
    given = {str(each.arg): ast.literal_eval(each.value) for each in tree.keywords}
    of_input = {"dtype": graph.spec(inputs[0]).dtype} if inputs else {}
    taken = op_table.lookup(op).attributes
    defaults = {k: v for k, v in (DEFAULTS | POOL | DRAWS | RESPONSE | of_input).items() if k in taken}
    return graph, graph.add(op, inputs, {**defaults, **given}, name=op)


def _placeholder(graph: Graph, argument: ast.expr) -> Tensor:
    assert isinstance(argument, ast.Subscript)
    shape = ast.literal_eval(argument.slice)
    return ops.placeholder(graph, shape if isinstance(shape, tuple) else (shape,), DTYPES[ast.unparse(argument.value)])


def with_decomposition(
    graph: Graph, inputs: Sequence[Tensor], node: Node, feeds: dict[Tensor, Array]
) -> list[tuple[Array, Array]]:
    """Return, for each output of a node, the value from its kernel and the value from the decomposition of the node."""
    decompose = op_table.lookup(node.op).decompose
    assert decompose is not None
    parts = decompose(graph, inputs, node.attributes)
    assert [graph.spec(part) for part in parts] == list(node.outputs)
    values = evaluate(graph, [*node.tensors, *parts], feeds)
    return list(zip(values[: len(parts)], values[len(parts) :], strict=True))
