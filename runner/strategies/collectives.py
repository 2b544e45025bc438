"""Sums over workers as graph nodes: every collective equals the plain ordered sum, with a known number of bytes.

No message code here: an edge between devices becomes Send and Recv when the graph is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.tensor import Tensor
from runner.strategies.base import ordered_sum, shares


def sharded_reduce(graph: Graph, parts: Sequence[Tensor], devices: Sequence[str], name: str) -> list[Tensor]:
    """Sum one tensor per worker and leave the sum on every worker (Krizhevsky 2014, section 4).

    parts: K tensors of one shape, the k-th on ``devices[k]``. Worker j owns the j-th of K slices of the flattened
    tensor: it receives that slice from the others, sums the K slices in worker order and sends the sum to the
    others. Returns K tensors of the same shape, equal to the bit on all workers and to ((p0 + p1) + p2) + ...

    Bytes on the wire, n elements of b bytes: worker k sends (n - n_k) b of its own gradient and (K - 1) n_k b of the
    slice it owns, in total 2 (K - 1) n b.
    """
    workers = len(devices)
    spec = graph.spec(parts[0])
    if workers == 1 or spec.size == 0:
        return list(parts)
    owned = [(k, lo, hi) for k, (lo, hi) in enumerate(shares(spec.size, workers)) if hi > lo]
    flat = []
    for k, part in enumerate(parts):
        with graph.device(devices[k]), graph.absolute_scope(f"reduce/{name}/worker_{k}"):
            flat.append(ops.reshape(graph, part, (spec.size,)))
    sums = []
    for owner, lo, hi in owned:
        slices = []
        for k in range(workers):
            with graph.device(devices[k]), graph.absolute_scope(f"reduce/{name}/worker_{k}"):
                slices.append(ops.slice(graph, flat[k], begin=(lo,), size=(hi - lo,)))
        with graph.device(devices[owner]), graph.absolute_scope(f"reduce/{name}/worker_{owner}"):
            sums.append(ordered_sum(graph, slices))
    totals = []
    for k in range(workers):
        with graph.device(devices[k]), graph.absolute_scope(f"reduce/{name}/worker_{k}"):
            whole = sums[0] if len(sums) == 1 else ops.concat(graph, sums, axis=0)
            totals.append(ops.reshape(graph, whole, spec.shape))
    return totals
