"""The passes that make a graph cheaper, in their order.

By the reference kernels, without bfloat16 and NaN, they do not change a bit of what it computes; where there is
bfloat16, fusions leave out roundings.
Compression of transfers is apart: it is run where the cluster asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from runner.engine.graph import Graph
from runner.engine.passes.common_subexpressions import merge_common_subexpressions
from runner.engine.passes.compression import compress_transfers
from runner.engine.passes.constant_folding import fold_constants
from runner.engine.passes.dead_code import remove_dead_code
from runner.engine.passes.fusion_bias_gradient import fuse_bias_gradients
from runner.engine.passes.fusion_bias_relu import fuse_bias_and_relu
from runner.engine.passes.fusion_elementwise import fuse_elementwise
from runner.engine.passes.fusion_gradient_precision import fuse_gradient_precision
from runner.engine.passes.fusion_narrowing import fuse_narrowing
from runner.engine.passes.fusion_normalization import fuse_normalization_and_relu
from runner.engine.passes.fusion_update import fuse_updates
from runner.engine.passes.hoist_relu_gradients import hoist_relu_gradients
from runner.engine.passes.identities import remove_identities
from runner.engine.passes.rewriting import Moved, Rewrite, Roots
from runner.kernels.registry import Registry

Observer = Callable[[str, Graph], None]


@dataclass(frozen=True)
class Pass:
    """A pure function from a graph and what it is run for to a graph and where tensors went."""

    name: str
    run: Callable[[Graph, Roots], Rewrite]


FUSIONS = (
    Pass("normalization and relu", fuse_normalization_and_relu),
    Pass("bias and relu", fuse_bias_and_relu),
    Pass("bias gradients", fuse_bias_gradients),
    Pass("gradient precision", fuse_gradient_precision),
    Pass("relu gradients", hoist_relu_gradients),
    Pass("elementwise", fuse_elementwise),
)
"""Passes that join nodes. Layers come first: what is left of element-wise nodes is joined among itself.

A relu_gradient is hoisted when no layer has taken it, and before it is one of a chain.
"""


COMPRESSION = Pass("compression", compress_transfers)
"""The only pass that loses bits of float32 by intent. It comes last: nothing is joined across its nodes."""


def default_passes(registry: Registry) -> tuple[Pass, ...]:
    """The passes a session runs.

    registry: whose reference kernels compute constants, and whose faster kernels say what is joined.
    """
    return (
        Pass("constants", partial(fold_constants, registry=registry)),
        Pass("identities", remove_identities),
        Pass("common subexpressions", merge_common_subexpressions),
        Pass("dead code", remove_dead_code),
        *FUSIONS,
        Pass("narrowing", partial(fuse_narrowing, registry=registry)),
        Pass("updates", partial(fuse_updates, registry=registry)),
        Pass("dead code after fusion", remove_dead_code),
    )


def optimize(graph: Graph, roots: Roots, passes: Sequence[Pass], observe: Observer | None = None) -> Rewrite:
    """Run passes one after the other on a placed graph from which gradients have been taken.

    Returns the graph and where every moved tensor is now. Nothing is joined across devices; nodes that stay keep
    their names. observe: called with the name and the result of every pass; tests verify the graph there.
    """
    total: Moved = {}
    for each in passes:
        graph, moved = each.run(graph, roots.after(total))
        total = {old: moved.get(new, new) for old, new in total.items()} | {
            old: new for old, new in moved.items() if old not in total
        }
        if observe is not None:
            observe(each.name, graph)
    return graph, total
