"""Units of dense layers cut over workers: who has which, and what can be computed of some without the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.engine.graph.tensor import Tensor
from runner.strategies.replica import Share, shares

BY_UNIT = frozenset(
    (
        *("abs", "add", "cast", "div", "exp", "identity", "log", "maximum", "minimum", "mul", "neg", "pow", "relu"),
        *("sigmoid", "sqrt", "square", "stop_gradient", "sub", "tanh", "batch_norm", "batch_norm_inference"),
    )
)
"""Ops that make of some units of their inputs the same units of their outputs; units are the last axis."""


def shares_of_units(units: int, workers: int) -> dict[int, Share]:
    """Worker -> (begin, end) of its units, as even as possible; without the workers that have none."""
    return {j: share for j, share in enumerate(shares(units, workers)) if share[1] > share[0]}


def mask_of_units(node: Node, share: Share) -> dict[str, Any]:
    """Attributes that let a ``dropout_mask`` (N, U) draw the columns begin..end-1 of what it draws for all units."""
    begin, end = share
    return {"shape": (node.attributes["shape"][0], end - begin), "first": node.attributes["first"] + begin}


def joined(graph: Graph, parts: Sequence[Tensor], axis: int) -> Tensor:
    """Add parts joined along an axis, in the order given."""
    return parts[0] if len(parts) == 1 else ops.concat(graph, parts, axis, name="gathered")
