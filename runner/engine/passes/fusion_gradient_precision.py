"""Sums of products that are only read as float32 are given as float32, not rounded to bfloat16 in between.

They are summed in float32 in any case. Beside gradients of weights, for which this is done, it finds logits.
"""

from __future__ import annotations

from dataclasses import replace

from runner.engine.graph import Graph, Node
from runner.engine.passes.rewriting import Moved, Rewrite, Roots, Uses, exchange
from runner.engine.tensor import state_dtype

FUSED = {
    "matmul": "matmul_fused",
    "matmul_fused": "matmul_fused",
    "matmul_bias_gradient": "matmul_bias_gradient",
    "conv2d_weight_gradient": "conv2d_weight_gradient",
    "conv2d_weight_bias_gradient": "conv2d_weight_bias_gradient",
}
"""Op -> the op that computes the same and says in its attribute ``dtype`` what it gives."""


def fuse_gradient_precision(graph: Graph, roots: Roots) -> Rewrite:
    """Return the graph with casts to float32 fused into what alone they read, and where their results went.

    The only pass that changes values, and only those of bfloat16: it leaves out a rounding. The fused node keeps its
    name and its place; nothing is done where any of its outputs is read, fetched or awaited as bfloat16.
    """
    uses = Uses(graph, roots)
    exchanged: dict[str, Node | None] = {}
    moved: Moved = {}
    for node in graph:
        if node.op in FUSED and node.outputs[0].dtype == "bfloat16":
            casts = _casts_of(uses, node)
            if casts:
                exchanged[node.name] = _widened(node)
                exchanged.update(dict.fromkeys(cast.node for cast in casts))
                moved.update(casts)
    return exchange(graph, exchanged, moved), moved


def _casts_of(uses: Uses, node: Node) -> Moved:
    """Results of the casts that read a node, and what each is a cast of; none where somebody else needs the node."""
    found: Moved = {}
    for tensor in node.tensors:
        readers = uses.readers.get(tensor, ())
        if tensor in uses.roots.fetches or not all(_is_cast_beside(uses, node, reader) for reader in readers):
            return {}
        found.update((reader[0], tensor) for reader in readers)
    return found


def _is_cast_beside(uses: Uses, node: Node, reader: Node) -> bool:
    widens = reader.op == "cast" and reader.outputs[0].dtype == state_dtype(node.outputs[0].dtype)
    return widens and reader.device == node.device and reader.name not in uses.pinned and not reader.control_inputs


def _widened(node: Node) -> Node:
    dtype = state_dtype(node.outputs[0].dtype)
    outputs = tuple(replace(spec, dtype=dtype) for spec in node.outputs)
    added = {"bias": False, "relu": False} if node.op == "matmul" else {}
    attributes = {**node.attributes, **added, "dtype": dtype}
    return replace(node, op=FUSED[node.op], attributes=attributes, outputs=outputs)
