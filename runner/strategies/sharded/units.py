"""Units of dense layers sharded over workers: their assignment, and the ops that treat every unit separately."""

from collections.abc import Sequence
from typing import Any

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Node, Tensor
from runner.strategies.replica import Share, shares

BY_UNIT = frozenset(
    (
        *("abs", "add", "cast", "div", "exp", "identity", "log", "maximum", "minimum", "mul", "neg", "pow", "relu"),
        *("sigmoid", "sqrt", "square", "stop_gradient", "sub", "tanh", "batch_norm", "batch_norm_inference"),
    )
)
"""Ops that compute each unit of their outputs from the same unit of their inputs; units are the last axis."""


def shares_of_units(units: int, workers: int) -> dict[int, Share]:
    """Return worker -> (begin, end) of its units, as even as possible; workers without units are left out."""
    return {j: share for j, share in enumerate(shares(units, workers)) if share[1] > share[0]}


def mask_of_units(node: Node, share: Share) -> dict[str, Any]:
    """Return attributes with which a ``dropout_mask`` (N, U) draws columns begin..end-1 of the whole mask."""
    begin, end = share
    return {"shape": (node.attributes["shape"][0], end - begin), "first": node.attributes["first"] + begin}


def joined(graph: Graph, parts: Sequence[Tensor], axis: int) -> Tensor:
    """Add the concatenation of parts along an axis."""
    return parts[0] if len(parts) == 1 else ops.concat(graph, parts, axis, name="gathered")
