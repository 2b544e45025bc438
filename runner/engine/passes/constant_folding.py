"""What can be computed before the first step is: nodes that read nothing but constants become constants.

A tensor whose elements are all one number stays a ``fill``, however large; it never becomes a table. Tables are made
of small results only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine import op as op_table
from runner.engine.graph import Graph, Node
from runner.engine.passes.rewriting import Moved, Rewrite, Roots, Uses, fresh_name, rewired
from runner.engine.tensor import FLOATS, Tensor, TensorSpec
from runner.kernels.contract import Buffers, Operand, plain
from runner.kernels.memory import allocate
from runner.kernels.registry import Registry

Array = NDArray[Any]

MAX_BYTES = 4096
"""Largest table that is made, and largest input that one is made of."""

UNIFORM = frozenset(
    (
        *("add", "add_n", "sub", "mul", "div", "neg", "abs", "sign", "square", "sqrt", "relu", "relu_gradient"),
        *("equal", "greater", "greater_equal", "less", "maximum", "minimum", "select", "cast"),
    )
)
"""Ops that make equal elements of equal elements, with arithmetic that rounds alike everywhere."""

REARRANGING = frozenset({"broadcast_to", "identity", "reshape", "slice", "stop_gradient", "transpose"})
"""Ops that leave of a tensor of equal elements another such, but for its shape; beside them ``split``, ``concat``."""

LARGEST_WHOLE = 2**53
"""A ``fill`` holds its number as a float64; whole numbers beyond this may not fit."""


def fold_constants(graph: Graph, roots: Roots, registry: Registry) -> Rewrite:
    """Return the graph with nodes over ``fill`` and ``constant`` replaced by such under their names.

    The parts of a ``split`` become nodes of their own. registry: where the reference kernels are found that compute
    the values.
    """
    result, moved = Graph(), Moved()
    pinned = Uses(graph, roots).pinned
    for original in graph:
        node = rewired(original, moved)
        sources = [result.nodes[tensor.node] for tensor in node.inputs]
        if not sources or any(source.op not in ("fill", "constant") for source in sources):
            result.insert(node)
        elif node.op == "split" and sources[0].op == "fill" and not node.control_inputs and node.name not in pinned:
            moved.update(zip(original.tensors, _parts(result, node, sources[0]), strict=True))
        else:
            result.insert(_folded(node, sources, registry))
    return result, moved


def _parts(result: Graph, split: Node, source: Node) -> Iterator[Tensor]:
    """Insert a ``fill`` for each part of a split of one."""
    for port, spec in enumerate(split.outputs):
        part = replace(split, name=fresh_name(result.nodes, f"{split.name}/{port}"), outputs=(spec,))
        yield result.insert(_replaced(part, "fill", source.attributes["value"]))[0]


def _folded(node: Node, sources: Sequence[Node], registry: Registry) -> Node:
    """The constant that takes the place of a node, or the node where it has to stay."""
    if all(source.op == "fill" for source in sources):
        if node.op in REARRANGING or (node.op == "concat" and _all_equal(sources)):
            return _replaced(node, "fill", sources[0].attributes["value"])
        if node.op in UNIFORM:
            scalars = [np.full((), source.attributes["value"], source.outputs[0].dtype) for source in sources]
            number = _compute(node, scalars, TensorSpec((), node.outputs[0].dtype), registry)
            if _fits_a_fill(number):
                return _replaced(node, "fill", float(number))
    if not _makes_a_table(node, sources):
        return node
    table = _compute(node, [_array(source) for source in sources], node.outputs[0], registry)
    if _is_uniform(table) and _fits_a_fill(table.flat[0]):
        return _replaced(node, "fill", float(table.flat[0]))
    return _replaced(node, "constant", table.astype(table.dtype.newbyteorder("<")).tobytes())


def _all_equal(sources: Sequence[Node]) -> bool:
    first = sources[0].attributes["value"]
    return all(source.attributes["value"] == first for source in sources)


def _makes_a_table(node: Node, sources: Sequence[Node]) -> bool:
    definition = op_table.lookup(node.op)
    computed = definition.executed_by == "kernel" and not definition.stateful and node.op != "convert"
    specs = [*node.outputs, *(source.outputs[0] for source in sources)]
    return computed and len(node.outputs) == 1 and all(spec.nbytes <= MAX_BYTES for spec in specs)


def _array(source: Node) -> Array:
    """The value of a fill or a constant."""
    spec, value = source.outputs[0], source.attributes["value"]
    if source.op == "fill":
        return np.full(spec.shape, value, spec.dtype)
    return np.frombuffer(value, np.dtype(spec.dtype).newbyteorder("<")).astype(spec.dtype).reshape(spec.shape)


def _compute(node: Node, arrays: Sequence[Array], output: TensorSpec, registry: Registry) -> Array:
    """What the reference kernel of a node makes of these inputs."""
    specs = [TensorSpec(array.shape, array.dtype.name) for array in arrays]
    operands = [Operand(spec, plain(spec), allocate(spec.nbytes)) for spec in (*specs, output)]
    for operand, array in zip(operands, arrays, strict=False):
        np.copyto(operand.array, array)
    kernel = registry.find(node.op, "cpu", "numpy")
    arrangement = kernel.arrange(node.attributes, specs, [output], [plain(spec) for spec in specs])
    assert arrangement is not None, "a reference kernel can do every node of its op"
    buffers = Buffers(tuple(operands[:-1]), (operands[-1],), allocate(arrangement.scratch_bytes))
    call = kernel.bind(node.attributes, arrangement, buffers)
    assert callable(call), "a reference kernel is a function of Python"
    # Infinities and NaNs are values here, as they are when a step runs.
    with np.errstate(all="ignore"):
        call()
    return operands[-1].array


def _is_uniform(table: Array) -> bool:
    return table.size > 0 and table.tobytes() == table.flat[0].tobytes() * table.size


def _fits_a_fill(number: Any) -> bool:
    return number.dtype.name in (*FLOATS, "bool") or abs(int(number)) <= LARGEST_WHOLE


def _replaced(node: Node, op: str, value: float | bytes) -> Node:
    (spec,) = node.outputs
    attributes: Mapping[str, Any] = {"value": value, "shape": spec.shape, "dtype": spec.dtype}
    return replace(node, op=op, inputs=(), attributes=attributes)
