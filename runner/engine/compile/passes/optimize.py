"""The passes that make a graph cheaper to run, and their order.

With the reference kernels, the passes change no bit of the results, except for NaN and in bfloat16, where fusions omit
roundings. If the cluster enables compression, a separate pass compresses transfers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from runner.engine.compile.passes.constant_folding import fold_constants
from runner.engine.compile.passes.fusion_elementwise import fuse_elementwise
from runner.engine.compile.passes.fusion_rules import (
    BIAS_AND_RELU,
    BIAS_GRADIENTS,
    NORMALIZATION_AND_RELU,
    RELU_GRADIENTS,
    SQUARES,
    UNROUNDED_SUMS,
    fuse_updates,
)
from runner.engine.compile.passes.matching import rewrite
from runner.engine.compile.passes.rewriting import Moved, Rewrite, Roots, followed
from runner.engine.compile.passes.simplification import merge_common_subexpressions, remove_dead_code, remove_identities
from runner.engine.compile.passes.transfers import compress_transfers
from runner.engine.graph import Graph
from runner.kernels.registry import Registry

Observer = Callable[[str, Graph], None]
"""A function that receives the name and the result of every pass."""


@dataclass(frozen=True)
class Pass:
    """A pure function from a graph and its roots to a new graph and a map from replaced tensors to new ones."""

    name: str
    run: Callable[[Graph, Roots], Rewrite]


FUSIONS = (
    Pass("normalization and relu", partial(rewrite, rules=NORMALIZATION_AND_RELU)),
    Pass("bias and relu", partial(rewrite, rules=BIAS_AND_RELU, from_end=True)),
    Pass("bias gradients", partial(rewrite, rules=BIAS_GRADIENTS)),
    Pass("gradient precision", partial(rewrite, rules=UNROUNDED_SUMS)),
    Pass("relu gradients", partial(rewrite, rules=RELU_GRADIENTS)),
    Pass("sums of squares", partial(rewrite, rules=SQUARES)),
    Pass("elementwise", fuse_elementwise),
)
"""Passes that join nodes: first the nodes of a layer, then the remaining element-wise nodes with each other.

Three passes move or fuse ReLU gradients: "normalization and relu", then "relu gradients", then "elementwise".
"""


COMPRESSION = Pass("compression", compress_transfers)
"""The only pass that discards bits of float32 on purpose. The pass runs last: its casts would prevent fusions."""


def default_passes(registry: Registry) -> tuple[Pass, ...]:
    """Return the passes that a session runs.

    registry: its reference kernels compute folded constants, and its faster kernels decide which updates are fused.
    """
    return (
        Pass("constants", partial(fold_constants, registry=registry)),
        Pass("identities", remove_identities),
        Pass("common subexpressions", merge_common_subexpressions),
        Pass("dead code", remove_dead_code),
        *FUSIONS,
        Pass("updates", partial(fuse_updates, registry=registry)),
        Pass("dead code after fusion", remove_dead_code),
    )


def optimize(graph: Graph, roots: Roots, passes: Sequence[Pass], observe: Observer | None = None) -> Rewrite:
    """Run passes in order on a placed graph that contains its gradients.

    Returns the new graph and a map from replaced tensors to new ones. Nodes on different devices are never joined;
    remaining nodes keep their names.
    """
    total: Moved = {}
    for each in passes:
        graph, moved = each.run(graph, roots.after(total))
        total = followed(total, moved)
        if observe is not None:
            observe(each.name, graph)
    return graph, total
