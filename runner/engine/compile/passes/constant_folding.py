"""Constant folding: nodes that read only constants become constants before the first step.

A tensor of any size whose elements are all equal stays a ``fill`` node. Another result becomes a table (a ``constant``
node, which stores all elements) only if the result is small.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from runner.engine.compile.passes.rewriting import Moved, Rewrite, Roots, Uses, fresh_name, rewired
from runner.engine.graph import Graph, Node, Tensor, TensorSpec
from runner.engine.graph import op as op_table
from runner.engine.graph.tensor import FLOATS
from runner.kernels.contract import Array, Buffers, Operand, plain
from runner.kernels.memory import allocate
from runner.kernels.registry import Registry

MAX_BYTES = 4096
"""Largest size in bytes of a table, and of each input of a node that becomes a table."""

UNIFORM = frozenset(
    (
        *("add", "add_n", "sub", "mul", "div", "neg", "abs", "sign", "square", "sqrt", "relu", "relu_gradient"),
        *("equal", "greater", "greater_equal", "less", "maximum", "minimum", "select", "cast"),
    )
)
"""Ops that map inputs with equal elements to an output with equal elements, rounded alike on all devices."""

REARRANGING = frozenset({"broadcast_to", "identity", "reshape", "slice", "stop_gradient", "transpose"})
"""Ops that only change the shape of a tensor of equal elements. ``split`` and ``concat`` are treated separately."""

LARGEST_WHOLE = 2**53
"""Largest integer of a ``fill``, which stores its number as a float64; larger integers may be rounded."""


def fold_constants(graph: Graph, roots: Roots, registry: Registry) -> Rewrite:
    """Return the graph in which nodes that read only constants are ``fill`` or ``constant`` nodes of the same name.

    Each part of a split ``fill`` becomes a separate node. registry: provides the reference kernels that compute values.
    """
    result, moved = Graph(), Moved()
    pinned = Uses(graph, roots).pinned
    for original in graph:
        node = rewired(original, moved)
        sources = [result.nodes[tensor.node] for tensor in node.inputs]
        if not sources or any(each.op not in ("fill", "constant") or each.control_inputs for each in sources):
            result.insert(node)
        elif node.op == "split" and sources[0].op == "fill" and not node.control_inputs and node.name not in pinned:
            moved.update(zip(original.tensors, _parts(graph, result, node, sources[0]), strict=True))
        else:
            result.insert(_folded(node, sources, registry))
    return result, moved


def _parts(graph: Graph, result: Graph, split: Node, source: Node) -> Iterator[Tensor]:
    """Insert a ``fill`` for each part of a split ``fill``, and yield its output."""
    for port, spec in enumerate(split.outputs):
        part = split.changed(name=fresh_name(graph.nodes, f"{split.name}/{port}"), outputs=(spec,))
        yield result.insert(_replaced(part, "fill", source.attributes["value"]))[0]


def _folded(node: Node, sources: Sequence[Node], registry: Registry) -> Node:
    """Return the constant that replaces a node, or the node itself if it cannot be replaced."""
    if all(source.op == "fill" for source in sources):
        numbers = [source.attributes["value"] for source in sources]
        # Floats are compared by their bits, because 0.0 == -0.0.
        equal = len({number.hex() for number in numbers}) == 1
        if node.op in REARRANGING or (node.op == "concat" and equal):
            return _replaced(node, "fill", numbers[0])
        if node.op in UNIFORM:
            scalars = [np.full((), n, source.outputs[0].dtype) for n, source in zip(numbers, sources, strict=True)]
            result = _compute(node, scalars, TensorSpec((), node.outputs[0].dtype), registry)
            if _fits_a_fill(result):
                return _replaced(node, "fill", float(result))
    if not _makes_a_table(node, sources):
        return node
    try:
        table = _compute(node, [_array(source) for source in sources], node.outputs[0], registry)
    except Exception:  # noqa: BLE001 - a step that cannot compute the node raises an error that names it
        return node
    is_uniform = table.size > 0 and table.tobytes() == table.flat[0].tobytes() * table.size
    if is_uniform and _fits_a_fill(table.flat[0]):
        return _replaced(node, "fill", float(table.flat[0]))
    return _replaced(node, "constant", table.astype(table.dtype.newbyteorder("<")).tobytes())


def _makes_a_table(node: Node, sources: Sequence[Node]) -> bool:
    definition = op_table.lookup(node.op)
    computed = definition.executed_by == "kernel" and not definition.stateful and node.op != "convert"
    specs = [*node.outputs, *(source.outputs[0] for source in sources)]
    return computed and len(node.outputs) == 1 and all(spec.nbytes <= MAX_BYTES for spec in specs)


def _array(source: Node) -> Array:
    """Return the value of a fill or a constant."""
    spec, value = source.outputs[0], source.attributes["value"]
    if source.op == "fill":
        return np.full(spec.shape, value, spec.dtype)
    return np.frombuffer(value, np.dtype(spec.dtype).newbyteorder("<")).astype(spec.dtype).reshape(spec.shape)


def _compute(node: Node, arrays: Sequence[Array], output: TensorSpec, registry: Registry) -> Array:
    """Return the output of a node's reference kernel for these inputs."""
    specs = [TensorSpec(array.shape, array.dtype.name) for array in arrays]
    operands = [Operand(spec, plain(spec), allocate(spec.nbytes)) for spec in (*specs, output)]
    for operand, array in zip(operands, arrays, strict=False):
        np.copyto(operand.array, array)
    kernel = registry.find(node.op, "cpu", "numpy")
    arrangement = kernel.arrange(node.attributes, specs, [output], [plain(spec) for spec in specs])
    assert arrangement is not None, "a reference kernel accepts every node of its op"
    buffers = Buffers(tuple(operands[:-1]), (operands[-1],), allocate(arrangement.scratch_bytes))
    call = kernel.bind(node.attributes, arrangement, buffers)
    assert callable(call), "a reference kernel is a Python function"
    # Infinities and NaNs are valid results, as in a step.
    with np.errstate(all="ignore"):
        call()
    return operands[-1].array


def _fits_a_fill(number: Any) -> bool:
    return number.dtype.name in (*FLOATS, "bool") or abs(int(number)) <= LARGEST_WHOLE


def _replaced(node: Node, op: str, value: float | bytes) -> Node:
    (spec,) = node.outputs
    attributes: Mapping[str, Any] = {"value": value, "shape": spec.shape, "dtype": spec.dtype}
    return node.changed(op=op, inputs=(), attributes=attributes)
