"""Sums over workers as graph nodes: every collective equals the plain ordered sum, with a known number of bytes.

No message code here: an edge between devices becomes Send and Recv when the graph is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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


Combine = Callable[[Graph, Sequence[Tensor], Sequence[str], str], list[Tensor]]
"""A collective: (graph, one tensor per worker, devices, name) -> the sum on every worker."""


def in_buckets(nbytes: Sequence[int], limit: int) -> list[range]:
    """Cut a sequence of tensors into runs of at most ``limit`` bytes together; a larger one is alone."""
    runs: list[range] = []
    start, filled = 0, 0
    for i, size in enumerate(nbytes):
        if i > start and filled + size > limit:
            runs.append(range(start, i))
            start, filled = i, 0
        filled += size
    if start < len(nbytes):
        runs.append(range(start, len(nbytes)))
    return runs


def combine_bucket(
    graph: Graph, parts: Sequence[Sequence[Tensor]], devices: Sequence[str], name: str, combine: Combine
) -> list[list[Tensor]]:
    """Combine several tensors as one message: parts[k][i] is worker k's share of tensor i; the sums come back alike.

    A message has a price of its own, and most gradients are small. Element by element the sums are those of the
    tensors taken alone, bit for bit.
    """
    if len(parts[0]) == 1 or len(devices) == 1:
        apart = [combine(graph, [own[i] for own in parts], devices, name) for i in range(len(parts[0]))]
        return [[total[k] for total in apart] for k in range(len(devices))]
    shapes = [graph.spec(tensor).shape for tensor in parts[0]]
    packed = []
    for k, (own, device) in enumerate(zip(parts, devices, strict=True)):
        with graph.device(device), graph.absolute_scope(f"reduce/{name}/worker_{k}/packed"):
            packed.append(ops.concat(graph, [ops.reshape(graph, tensor, (-1,)) for tensor in own], axis=0))
    totals = combine(graph, packed, devices, name)
    unpacked = []
    for k, (total, device) in enumerate(zip(totals, devices, strict=True)):
        with graph.device(device), graph.absolute_scope(f"reduce/{name}/worker_{k}/unpacked"):
            flat = ops.split(graph, total, 0, [math.prod(shape) for shape in shapes])
            unpacked.append([ops.reshape(graph, part, shape) for part, shape in zip(flat, shapes, strict=True)])
    return unpacked
