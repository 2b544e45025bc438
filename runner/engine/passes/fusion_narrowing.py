"""Large weights of bfloat16 products are read as float32, and rounded where they are used.

A cast reads them and writes them for each product to read again: for few rows that takes longer than to multiply.
"""

from __future__ import annotations

from dataclasses import replace

from runner.engine.device import DeviceName
from runner.engine.graph import Graph, Node
from runner.engine.ops.narrowed_linear import OP
from runner.engine.passes.rewriting import Rewrite, Roots, exchange
from runner.engine.tensor import state_dtype
from runner.kernels.contract import KernelError
from runner.kernels.registry import Registry

SMALLEST_BYTES = 4 << 20
"""Bytes of float32 weights from which on they are read so: what is smaller stays in a cache behind its cast."""

_WEIGHTS = 1


def fuse_narrowing(
    graph: Graph, roots: Roots, registry: Registry | None = None, smallest_bytes: int = SMALLEST_BYTES
) -> Rewrite:
    """Return the graph with products x w and dy w' that read the w of which they read a cast.

    Each becomes a ``matmul_narrowed`` at its place, under its name. Whether it does is a matter of its own shapes, so
    that all strategies compute a product alike. Casts that nobody reads any more are left to the pass for dead code.
    registry: where given, only what it has a better kernel for than the reference. smallest_bytes: of w.
    """
    exchanged: dict[str, Node | None] = {}
    for node in graph:
        fused = _fused(graph, node, smallest_bytes)
        if fused is not None and (registry is None or _is_faster(graph, fused, registry)):
            exchanged[node.name] = fused
    return exchange(graph, exchanged, {}), {}


def _fused(graph: Graph, node: Node, smallest_bytes: int) -> Node | None:
    """A product that rounds its weights itself, or None where it has none to round."""
    if node.op not in ("matmul", "matmul_fused") or node.attributes["transpose_a"]:
        return None
    cast = graph.nodes[node.inputs[_WEIGHTS].node]
    if cast.op != "cast" or cast.device != node.device or cast.control_inputs:
        return None
    wide, narrow = graph.spec(cast.inputs[0]), cast.outputs[0]
    if narrow.dtype != "bfloat16" or wide.dtype != state_dtype(narrow.dtype) or wide.nbytes < smallest_bytes:
        return None
    x, _, *bias = node.inputs
    added = {"bias": False, "relu": False, "narrow": narrow.dtype, "dtype": node.outputs[0].dtype}
    return replace(node, op=OP, inputs=(x, cast.inputs[0], *bias), attributes={**added, **node.attributes})


def _is_faster(graph: Graph, fused: Node, registry: Registry) -> bool:
    """Whether there is a kernel that is more than the definition of the op."""
    inputs = [graph.spec(tensor) for tensor in fused.inputs]
    device_type = DeviceName.parse(fused.device).type or ""
    try:
        choice = registry.choose(fused.op, device_type, fused.attributes, inputs, fused.outputs, [None] * len(inputs))
    except KernelError:
        return False
    return choice.kernel.priority > 0
