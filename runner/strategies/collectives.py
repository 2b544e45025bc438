"""Sums over workers as graph nodes: every collective equals the plain ordered sum, with a known number of bytes.

No message code here: an edge between devices becomes Send and Recv when the graph is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from runner.engine.compile.passes.rewriting import fresh_name
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from runner.strategies.replica import Share, ordered_sum, shares


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
    flat = _flattened(graph, parts, devices, name)
    sums = []
    for owner, (lo, hi) in _slices(spec.size, workers):
        slices = []
        for k in range(workers):
            with _on_worker(graph, devices, name, k):
                slices.append(ops.slice(graph, flat[k], begin=(lo,), size=(hi - lo,)))
        with _on_worker(graph, devices, name, owner):
            sums.append(ordered_sum(graph, slices))
    return _joined(graph, [sums] * workers, spec.shape, devices, name)


def ring_all_reduce(graph: Graph, parts: Sequence[Tensor], devices: Sequence[str], name: str) -> list[Tensor]:
    """Sum one tensor per worker and leave the sum on every worker, each sending to its neighbour alone.

    parts: K tensors of one shape, the k-th on ``devices[k]``. The flattened tensor is cut into K slices. Slice j sets
    out from worker j + 1 and goes round the ring; every worker adds its own to it, so that worker j has the sum
    ((p[j+1] + p[j+2]) + ...) + p[j], indices modulo K. The sum goes round once more. Returns K tensors of the same
    shape, equal to the bit on all workers.

    Bytes on the wire, n elements of b bytes: worker k sends (2 n - n_k - n_(k+1)) b, all to worker k + 1; in total
    2 (K - 1) n b.
    """
    workers = len(devices)
    spec = graph.spec(parts[0])
    if workers == 1 or spec.size == 0:
        return list(parts)
    flat = _flattened(graph, parts, devices, name)
    sums: list[list[Tensor]] = [[] for _ in devices]
    for owner, (lo, hi) in _slices(spec.size, workers):
        round_trip = [(owner + hop) % workers for hop in range(1, workers + 1)]
        passed: Tensor | None = None
        for k in round_trip:
            with _on_worker(graph, devices, name, k):
                own = ops.slice(graph, flat[k], begin=(lo,), size=(hi - lo,))
                passed = own if passed is None else ops.add(graph, passed, own)
        assert passed is not None, "there are workers"
        sums[owner].append(passed)
        for k in round_trip[:-1]:
            with _on_worker(graph, devices, name, k):
                # What is sent on from here must be here: the next one reads this node, not the sum itself.
                passed = ops.identity(graph, passed)
            sums[k].append(passed)
    return _joined(graph, sums, spec.shape, devices, name)


def all_reduce(graph: Graph, parts: Sequence[Tensor], devices: Sequence[str], name: str) -> list[Tensor]:
    """Sum one tensor per worker and leave the sum on every worker, each of which reads the parts of all.

    parts: K tensors of one shape, the k-th on ``devices[k]``. Returns K tensors of the same shape, equal to the bit on
    all workers and to ((p0 + p1) + p2) + ... Where the cluster has a library for sums between its GPUs, that makes
    them instead: :func:`~runner.engine.compile.passes.lower_collectives.lower_collectives`.

    Bytes on the wire, n elements of b bytes: worker k sends (K - 1) n b, its part to every other; in total
    (K - 1) K n b. With the library none: what it moves between GPUs, 2 (K - 1) n b in all around a ring, is its own.
    """
    workers = len(devices)
    if workers == 1 or graph.spec(parts[0]).size == 0:
        return list(parts)
    group = fresh_name(graph.nodes, f"reduce/{name}/worker_0/all_reduce")
    totals = []
    for k in range(workers):
        with _on_worker(graph, devices, name, k):
            totals.append(ops.all_reduce(graph, parts, group=group, rank=k))
    return totals


@contextmanager
def _on_worker(graph: Graph, devices: Sequence[str], name: str, k: int) -> Iterator[None]:
    """Put what is added within on worker k, in its scope of the reduction ``name``."""
    with graph.device(devices[k]), graph.absolute_scope(f"reduce/{name}/worker_{k}"):
        yield


def _flattened(graph: Graph, parts: Sequence[Tensor], devices: Sequence[str], name: str) -> list[Tensor]:
    flat = []
    for k, part in enumerate(parts):
        with _on_worker(graph, devices, name, k):
            flat.append(ops.reshape(graph, part, (-1,)))
    return flat


def _slices(size: int, workers: int) -> list[tuple[int, Share]]:
    """(owner, (begin, end)) of the slices that have elements."""
    return [(owner, share) for owner, share in enumerate(shares(size, workers)) if share[1] > share[0]]


def _joined(
    graph: Graph, sums: Sequence[Sequence[Tensor]], shape: tuple[int, ...], devices: Sequence[str], name: str
) -> list[Tensor]:
    """Put together the sums of all slices on every worker; sums[k] are those that worker k reads."""
    totals = []
    for k, slices in enumerate(sums):
        with _on_worker(graph, devices, name, k):
            whole = slices[0] if len(slices) == 1 else ops.concat(graph, slices, axis=0)
            totals.append(ops.reshape(graph, whole, shape))
    return totals


Combine = Callable[[Graph, Sequence[Tensor], Sequence[str], str], list[Tensor]]
"""A collective: (graph, one tensor per worker, devices, name) -> the sum on every worker."""


SMALLEST = 8
"""What part of the limit a run of tensors may always fill."""


def in_buckets(nbytes: Sequence[int], limit: int) -> list[range]:
    """Cut a sequence of tensors into runs of at most ``limit`` bytes together; a larger tensor is alone.

    A run also takes no more than half of what is left, unless that is less than ``limit`` / 8: nothing hides the
    exchange of the last run, so it is small, and those before it grow (Polychronopoulos and Kuck 1987, "Guided
    self-scheduling").
    """
    runs: list[range] = []
    start, filled, left = 0, 0, sum(nbytes)
    for i, size in enumerate(nbytes):
        if i > start and filled + size > min(limit, max(left // 2, limit // SMALLEST)):
            runs.append(range(start, i))
            start, filled, left = i, 0, left - filled
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
