"""The gradient of large weights goes into their update piece by piece: it never travels to main memory and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.engine.device import DeviceName
from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes
from runner.engine.ops.matmul_elementwise import OP
from runner.engine.passes.rewriting import Moved, Rewrite, Roots, Uses, fresh_name, rewired
from runner.engine.tensor import Tensor, TensorSpec
from runner.kernels.contract import KernelError
from runner.kernels.registry import Registry

SMALLEST_BYTES = 4 << 20
"""Bytes of a product from which on it is made in pieces: what is smaller stays in a cache between two nodes anyway."""


def fuse_updates(
    graph: Graph, roots: Roots, registry: Registry | None = None, smallest_bytes: int = SMALLEST_BYTES
) -> Rewrite:
    """Return the graph with products x' dy computed by the one element-wise node that reads them.

    That node becomes a ``matmul_elementwise`` at its place, under its name, with its outputs. Factors of bfloat16 are
    widened first where the product is given in float32, which changes no bit of theirs. A bias gradient that was
    computed with the product becomes a ``reduce_sum`` of its own at the old place, in the dtype that it had.
    registry: where given, only what it has a better kernel for than the reference. smallest_bytes: of a product.
    """
    uses = Uses(graph, roots)
    joined: dict[str, Node] = {}
    for node in graph:
        reader = _reader(uses, node, smallest_bytes)
        if reader is None or reader.name in joined:
            continue
        if registry is None or _is_faster(graph, node, reader, registry):
            joined[reader.name] = node
    return _exchange(graph, joined)


def _reader(uses: Uses, node: Node, smallest_bytes: int) -> Node | None:
    """The element-wise node that alone reads a product, where the two can be one."""
    if not _is_weight_gradient(node) or node.outputs[0].nbytes < smallest_bytes:
        return None
    reader = uses.sole_reader(node)
    if reader is None or reader.op != "elementwise" or reader.inputs.count(node[0]) != 1:
        return None
    return reader if _updates_variables(uses.graph, reader, node) else None


def _is_weight_gradient(node: Node) -> bool:
    """Whether output 0 is x' dy and nothing more."""
    if node.op == "matmul_bias_gradient":
        return True
    turned = (node.attributes.get("transpose_a"), node.attributes.get("transpose_b")) == (True, False)
    alone = not (node.attributes.get("bias", False) or node.attributes.get("relu", False))
    return node.op in ("matmul", "matmul_fused") and turned and alone


def _updates_variables(graph: Graph, reader: Node, product: Node) -> bool:
    """Whether all of full size that is read beside the product is variables of the device.

    What comes from another device would have to be waited for. And where parts of a gradient are summed, all of them
    are computed by the same kernel, on however many devices: it decides about bits.
    """
    shape = reader.outputs[0].shape
    others = [tensor for tensor in reader.inputs if graph.spec(tensor).shape == shape and tensor != product[0]]
    nodes = [graph.nodes[tensor.node] for tensor in others]
    return all(node.op == "variable" and node.device == reader.device for node in nodes)


def _fused(node: Node, reader: Node, factors: Sequence[Tensor]) -> Node:
    place = reader.inputs.index(node[0])
    operands = (*reader.inputs[:place], *reader.inputs[place + 1 :])
    added = {"transpose_a": True, "transpose_b": False, "dtype": node.outputs[0].dtype, "product": place}
    return replace(
        reader,
        op=OP,
        inputs=(*factors, *operands),
        attributes={**reader.attributes, **added},
        control_inputs=tuple(dict.fromkeys((*reader.control_inputs, *node.control_inputs))),
        layer=node.layer,
    )


def _is_faster(graph: Graph, node: Node, reader: Node, registry: Registry) -> bool:
    """Whether there is a kernel for both in one that is more than the definition of the op.

    Layouts are left open: weights of dense layers lie plain, as that kernel wants them.
    """
    fused = _fused(node, reader, node.inputs)
    factors = [replace(graph.spec(tensor), dtype=node.outputs[0].dtype) for tensor in node.inputs]
    inputs = [*factors, *(graph.spec(tensor) for tensor in fused.inputs[len(factors) :])]
    device_type = DeviceName.parse(node.device).type or ""
    try:
        choice = registry.choose(OP, device_type, fused.attributes, inputs, fused.outputs, [None] * len(inputs))
    except KernelError:
        return False
    return choice.kernel.priority > 0


def _exchange(graph: Graph, joined: Mapping[str, Node]) -> Rewrite:
    """The graph with readers in ``joined`` computing the product each has there."""
    result = Graph()
    moved: Moved = {}
    gone = {node.name for node in joined.values()}
    factors: dict[str, list[Tensor]] = {}
    wide: dict[tuple[Tensor, str], Tensor] = {}
    for old in graph:
        node = rewired(old, moved)
        if node.name in gone:
            for name, tensor in zip(("x", "dy"), node.inputs, strict=True):
                if (tensor, node.outputs[0].dtype) not in wide:
                    wide[tensor, node.outputs[0].dtype] = _widened(graph, result, node, name, tensor)
            factors[node.name] = [wide[tensor, node.outputs[0].dtype] for tensor in node.inputs]
            if node.op == "matmul_bias_gradient":
                dy = factors[node.name][1]
                total = _beside(graph, node, "reduce_sum", dy, {"axes": (0,), "keepdims": False}, node.outputs[1])
                moved[node[1]] = result.insert(total)[0]
        elif node.name in joined:
            product = joined[node.name]
            result.insert(_fused(product, node, factors[product.name]))
        else:
            result.insert(node)
    return result, moved


def _widened(graph: Graph, result: Graph, node: Node, name: str, factor: Tensor) -> Tensor:
    """A factor in the dtype of the product."""
    spec, dtype = result.spec(factor), node.outputs[0].dtype
    if spec.dtype == dtype:
        return factor
    return result.insert(_beside(graph, node, "cast", factor, {"dtype": dtype}, replace(spec, dtype=dtype), name))[0]


def _beside(
    graph: Graph, node: Node, op: str, x: Tensor, attributes: Attributes, output: TensorSpec, name: str = ""
) -> Node:
    """A node in the place of another, whose name begins with that one's."""
    full = fresh_name(graph.nodes, f"{node.name}/{name or op}")
    return Node(full, op, (x,), attributes, (output,), node.device, node.control_inputs, (), node.layer)
