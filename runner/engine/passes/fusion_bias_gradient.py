"""The gradient of a layer's weights takes that of the bias with it: both read the same dy."""

from __future__ import annotations

from collections.abc import Iterator

from runner.engine.graph import Graph, Node
from runner.engine.passes.rewriting import Moved, Rewrite, Roots, Uses, exchange, merged
from runner.engine.tensor import Tensor


def fuse_bias_gradients(graph: Graph, roots: Roots) -> Rewrite:
    """Return the graph with weight gradients fused with the sum of their dy, and where the sums went.

    conv2d_weight_gradient with the sum over examples and pixels; matmul(x, dy, transpose_a) with the sum over rows.
    The fused node has the name of the weight gradient and stands where the first of the two stood.
    """
    uses = Uses(graph, roots)
    exchanged: dict[str, Node | None] = {}
    moved: Moved = {}
    for node in graph:
        for total in _sums_beside(uses, node):
            first, last = sorted((node, total), key=lambda each: uses.position[each.name])
            if total.name not in exchanged and uses.stand_before((node, total), first):
                exchanged[last.name] = None
                exchanged[first.name] = _fused(node, total)
                moved[total[0]] = Tensor(node.name, 1)
                break
    return exchange(graph, exchanged, moved), moved


def _sums_beside(uses: Uses, node: Node) -> Iterator[Node]:
    """The nodes that sum the same dy over all but its channels and need not go on under their own names."""
    axes: tuple[int, ...]
    if node.op == "conv2d_weight_gradient":
        dy, axes = node.inputs[0], (0, 2, 3)
    elif node.op == "matmul" and (node.attributes["transpose_a"], node.attributes["transpose_b"]) == (True, False):
        dy, axes = node.inputs[1], (0,)
    else:
        return
    for reader in uses.readers[dy]:
        sums_up = reader.op == "reduce_sum" and reader.attributes == {"axes": axes, "keepdims": False}
        if sums_up and reader.device == node.device and reader.name not in uses.pinned:
            yield reader


def _fused(node: Node, total: Node) -> Node:
    if node.op == "matmul":
        op, attributes = "matmul_bias_gradient", {"dtype": node.outputs[0].dtype}
    else:
        op, attributes = "conv2d_weight_bias_gradient", dict(node.attributes)
    return merged((node, total), node.name, op, node.inputs, attributes, (*node.outputs, *total.outputs))
