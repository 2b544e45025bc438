"""The gradient of large weights goes into their update piece by piece: it never travels to main memory and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from runner.engine.device import DeviceName
from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes
from runner.engine.passes.rewriting import Moved, Rewrite, Roots, Uses, fresh_name, rewired
from runner.engine.tensor import Tensor, TensorSpec
from runner.kernels.registry import KernelError, Registry

OP = "matmul_elementwise"

SMALLEST_BYTES = 4 << 20
"""Bytes of a product from which on it is made in pieces: what is smaller stays in a cache between two nodes anyway."""


def fuse_updates(
    graph: Graph, roots: Roots, registry: Registry | None = None, smallest_bytes: int = SMALLEST_BYTES
) -> Rewrite:
    """Return the graph with products x' dy computed by the one element-wise node that reads them.

    That node becomes a ``matmul_elementwise`` at its place, under its name, with its outputs. A bias gradient that was
    computed with the product becomes a ``reduce_sum`` of its own at the old place, of dy in the dtype it had.
    registry: where given, only what it has a better kernel for than the reference. smallest_bytes: of a product.
    """
    uses = Uses(graph, roots)
    joined: dict[str, Node] = {}
    gone: set[str] = set()
    for node in graph:
        reader = _reader(uses, node, smallest_bytes)
        if reader is not None and reader.name not in joined:
            fused = _fused(node, reader)
            if registry is None or _is_faster(graph, fused, registry):
                joined[reader.name] = fused
                gone.add(node.name)
    return _exchange(graph, joined, gone)


def _reader(uses: Uses, node: Node, smallest_bytes: int) -> Node | None:
    """The element-wise node that alone reads a product, where the two can be one."""
    if not _is_weight_gradient(node) or node.outputs[0].nbytes < smallest_bytes:
        return None
    reader = uses.sole_reader(node)
    if reader is None or reader.op != "elementwise" or reader.inputs.count(node[0]) != 1:
        return None
    return reader if _stays_at_home(uses.graph, reader) else None


def _is_weight_gradient(node: Node) -> bool:
    """Whether output 0 is x' dy and nothing more."""
    if node.op == "matmul_bias_gradient":
        return True
    turned = (node.attributes.get("transpose_a"), node.attributes.get("transpose_b")) == (True, False)
    alone = not (node.attributes.get("bias", False) or node.attributes.get("relu", False))
    return node.op in ("matmul", "matmul_fused") and turned and alone


def _stays_at_home(graph: Graph, reader: Node) -> bool:
    """Whether nothing of full size comes from another device: the product would have to wait for it."""
    shape = reader.outputs[0].shape
    whole = [tensor for tensor in reader.inputs if graph.spec(tensor).shape == shape]
    return all(graph.nodes[tensor.node].device == reader.device for tensor in whole)


def _fused(node: Node, reader: Node) -> Node:
    place = reader.inputs.index(node[0])
    operands = (*reader.inputs[:place], *reader.inputs[place + 1 :])
    added = {"transpose_a": True, "transpose_b": False, "dtype": node.outputs[0].dtype, "product": place}
    return replace(
        reader,
        op=OP,
        inputs=(*node.inputs, *operands),
        attributes={**reader.attributes, **added},
        control_inputs=tuple(dict.fromkeys((*reader.control_inputs, *node.control_inputs))),
        layer=node.layer,
    )


def _is_faster(graph: Graph, node: Node, registry: Registry) -> bool:
    """Whether there is a kernel that is more than the definition of the op."""
    device_type = DeviceName.parse(node.device).type or ""
    inputs = [graph.spec(tensor) for tensor in node.inputs]
    try:
        choice = registry.choose(OP, device_type, node.attributes, inputs, node.outputs, [None] * len(inputs))
    except KernelError:
        return False
    return choice.kernel.priority > 0


def _exchange(graph: Graph, joined: Mapping[str, Node], gone: Collection[str]) -> Rewrite:
    result = Graph()
    moved: Moved = {}
    for node in graph:
        if node.name not in gone:
            result.insert(rewired(joined.get(node.name, node), moved))
        elif node.op == "matmul_bias_gradient":
            moved[node[1]] = _insert_sum(graph, result, rewired(node, moved))
    return result, moved


def _insert_sum(graph: Graph, result: Graph, node: Node) -> Tensor:
    """Add the bias gradient of a node that is gone: the same sum in the same dtype, rounded no more often."""
    dy, db = node.inputs[1], node.outputs[1]
    wide = replace(result.spec(dy), dtype=db.dtype)
    if wide != result.spec(dy):
        dy = result.insert(_beside(graph, node, "cast", dy, {"dtype": db.dtype}, wide))[0]
    axes = {"axes": (0,), "keepdims": False}
    return result.insert(_beside(graph, node, "reduce_sum", dy, axes, db))[0]


def _beside(graph: Graph, node: Node, op: str, x: Tensor, attributes: Attributes, output: TensorSpec) -> Node:
    name = fresh_name(graph.nodes, f"{node.name}/{op}")
    return Node(name, op, (x,), attributes, (output,), node.device, node.control_inputs, (), node.layer)
