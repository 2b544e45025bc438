"""Collectives as graph nodes, and the exchange of gradients and statistics in buckets.

A collective adds the nodes of a plain sum over the workers. No code here sends messages: an edge between devices
becomes a Send and a Recv node when the graph is partitioned.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from runner.engine.compile.passes.rewriting import fresh_name
from runner.engine.graph import Gradient, Graph, Rows, Tensor, ops
from runner.engine.graph.rows import dense, joined
from runner.errors import ConfigError
from runner.strategies.replica import Gradients, ordered_sum, shares_of_units

Added = TypeVar("Added")


def sharded_reduce(graph: Graph, parts: Sequence[Tensor], devices: Sequence[str], name: str) -> list[Tensor]:
    """Sum one tensor per worker and leave the sum on every worker (Krizhevsky 2014, section 4.1).

    parts: K tensors of one shape, the k-th on ``devices[k]``. The flattened tensor is cut into K slices. Worker j
    receives slice j of every other worker's tensor, sums the K slices in worker order and sends the sum to all other
    workers. Returns K tensors of the same shape, on all workers equal bit for bit to ((p0 + p1) + p2) + ...

    Two workers exchange whole tensors instead, and each adds both tensors. The bytes and the sums are the same, but one
    exchange replaces two, and no slices are copied.

    Bytes on the wire, for n elements of b bytes, n_k of them in slice k: worker k sends (n - n_k) b of its own tensor
    and (K - 1) n_k b of the sum of slice k; all workers together send 2 (K - 1) n b.
    """
    workers = len(devices)
    spec = graph.spec(parts[0])
    if spec.size == 0:
        return list(parts)
    if workers <= 2:
        return _on_each(graph, devices, name, lambda k: ordered_sum(graph, parts))
    flat = _on_each(graph, devices, name, lambda k: ops.reshape(graph, parts[k], (-1,)))
    sums = _summed_slices(graph, flat, devices, name)
    return _joined(graph, [[*sums.values()]] * workers, spec.shape, devices, name)


def hierarchical_reduce(
    graph: Graph, parts: Sequence[Tensor], devices: Sequence[str], name: str, *, workers_per_host: int
) -> list[Tensor]:
    """Sum one tensor per worker and leave the sum on every worker; hosts exchange sums instead of workers' tensors.

    parts: K tensors of one shape, the k-th on ``devices[k]``; every L = ``workers_per_host`` consecutive workers are on
    one host. The flattened tensor is cut into L slices. Worker j of a host sums slice j over its host in worker order.
    The workers j of all H = K / L hosts sum their slices by :func:`sharded_reduce`. Then the workers of each host send
    each other the sums. Returns K tensors of the same shape, on all workers equal bit for bit to
    ((h0 + h1) + h2) + ..., where each h is the sum ((p0 + p1) + p2) + ... of the tensors of one host.

    Bytes on the wire, for n elements of b bytes: 2 (H - 1) n b between hosts and 2 H (L - 1) n b within hosts, all
    workers together 2 (K - 1) n b.
    """
    spec = graph.spec(parts[0])
    if spec.size == 0 or len(devices) == 1:
        return list(parts)
    flat = _on_each(graph, devices, name, lambda k: ops.reshape(graph, parts[k], (-1,)))
    hosts = [slice(first, first + workers_per_host) for first in range(0, len(devices), workers_per_host)]
    of_hosts = [_summed_slices(graph, flat[own], devices[own], f"{name}/host_{host}") for host, own in enumerate(hosts)]
    sums = [
        sharded_reduce(graph, [own[j] for own in of_hosts], devices[j::workers_per_host], f"{name}/slice_{j}")
        for j in of_hosts[0]
    ]
    read = [[total[k // workers_per_host] for total in sums] for k in range(len(devices))]
    return _joined(graph, read, spec.shape, devices, name)


def ring_all_reduce(graph: Graph, parts: Sequence[Tensor], devices: Sequence[str], name: str) -> list[Tensor]:
    """Sum one tensor per worker and leave the sum on every worker; each worker sends only to the next worker.

    parts: K tensors of one shape, the k-th on ``devices[k]``. The flattened tensor is cut into K slices. Slice j starts
    at worker j + 1 and goes round the ring; every worker adds its own slice, so that worker j has the sum
    ((p[j+1] + p[j+2]) + ...) + p[j], indices modulo K. Then the sum goes round the ring. Returns K tensors of the same
    shape, equal bit for bit on all workers. A ring of two exchanges whole tensors, as in :func:`sharded_reduce`.

    Bytes on the wire, for n elements of b bytes, n_k of them in slice k: worker k sends (2 n - n_k - n_(k+1)) b, all to
    worker k + 1; all workers together send 2 (K - 1) n b.
    """
    workers = len(devices)
    spec = graph.spec(parts[0])
    if spec.size == 0:
        return list(parts)
    if workers <= 2:
        return _on_each(graph, devices, name, lambda k: ordered_sum(graph, parts))
    flat = _on_each(graph, devices, name, lambda k: ops.reshape(graph, parts[k], (-1,)))
    sums: list[list[Tensor]] = [[] for _ in devices]
    for owner, (lo, hi) in shares_of_units(spec.size, workers).items():
        round_trip = [(owner + hop) % workers for hop in range(1, workers + 1)]
        passed: Tensor | None = None
        for k in round_trip:
            with _on_worker(graph, devices, name, k):
                own = ops.slice(graph, flat[k], begin=(lo,), size=(hi - lo,))
                passed = own if passed is None else ops.add(graph, passed, own)
        assert passed is not None, "expected at least one worker"
        sums[owner].append(passed)
        for k in round_trip[:-1]:
            with _on_worker(graph, devices, name, k):
                # The next worker reads this node, so that this worker, not the slice's owner, sends the sum.
                passed = ops.identity(graph, passed)
            sums[k].append(passed)
    return _joined(graph, sums, spec.shape, devices, name)


def all_reduce(graph: Graph, parts: Sequence[Tensor], devices: Sequence[str], name: str) -> list[Tensor]:
    """Sum one tensor per worker and leave the sum on every worker; each worker reads the tensors of all workers.

    parts: K tensors of one shape, the k-th on ``devices[k]``. Returns K tensors of the same shape, on all workers equal
    bit for bit to ((p0 + p1) + p2) + ... If a GPU collective library is used, its calls replace these nodes; see
    :func:`~runner.engine.compile.passes.lower_collectives.lower_collectives`.

    Bytes on the wire, for n elements of b bytes: every worker sends its tensor to all others, (K - 1) n b per worker
    and (K - 1) K n b in all. With the library, the engine sends nothing; the library moves 2 (K - 1) n b around a ring.
    """
    workers = len(devices)
    if workers == 1 or graph.spec(parts[0]).size == 0:
        return list(parts)
    group = fresh_name(graph.nodes, f"reduce/{name}/worker_0/all_reduce")
    return _on_each(graph, devices, name, lambda k: ops.all_reduce(graph, parts, group=group, rank=k))


def all_gather(graph: Graph, parts: Sequence[Rows], devices: Sequence[str], name: str) -> list[Rows]:
    """Gather the rows of one table on every worker, in worker order; the gathered rows represent the summed gradient.

    parts: rows of K workers, the k-th on ``devices[k]``. Bytes on the wire, for n rows of b bytes and indices of i
    bytes: every worker sends its rows to all others, (K - 1) n (b + i) per worker and K (K - 1) n (b + i) in all.
    """
    return _on_each(graph, devices, name, lambda k: joined(graph, parts))


@contextmanager
def _on_worker(graph: Graph, devices: Sequence[str], name: str, k: int) -> Iterator[None]:
    """Add nodes on worker k, in its scope of the reduction ``name``."""
    with graph.device(devices[k]), graph.absolute_scope(f"reduce/{name}/worker_{k}"):
        yield


def _on_each(graph: Graph, devices: Sequence[str], name: str, add: Callable[[int], Added]) -> list[Added]:
    """Call ``add`` for each worker, with nodes added on this worker and in its scope; return the results."""
    added = []
    for k in range(len(devices)):
        with _on_worker(graph, devices, name, k):
            added.append(add(k))
    return added


def _summed_slices(graph: Graph, flat: Sequence[Tensor], devices: Sequence[str], name: str) -> dict[int, Tensor]:
    """Return worker j -> the sum of slice j of all tensors, in worker order and on this worker, for nonempty slices."""
    sums = {}
    for owner, (lo, hi) in shares_of_units(graph.spec(flat[0]).size, len(devices)).items():
        slices = []
        for k in range(len(devices)):
            with _on_worker(graph, devices, name, k):
                slices.append(ops.slice(graph, flat[k], begin=(lo,), size=(hi - lo,)))
        with _on_worker(graph, devices, name, owner):
            sums[owner] = ordered_sum(graph, slices)
    return sums


def _joined(
    graph: Graph, sums: Sequence[Sequence[Tensor]], shape: tuple[int, ...], devices: Sequence[str], name: str
) -> list[Tensor]:
    """Concatenate the sums of all slices on every worker; sums[k] are the tensors that worker k reads."""

    def whole(k: int) -> Tensor:
        return ops.reshape(graph, sums[k][0] if len(sums[k]) == 1 else ops.concat(graph, sums[k], axis=0), shape)

    return _on_each(graph, devices, name, whole)


Combine = Callable[[Graph, Sequence[Tensor], Sequence[str], str], list[Tensor]]
"""A collective: (graph, one tensor per worker, devices, name) -> the sum on every worker."""

ALL_REDUCE = "all_reduce"
HIERARCHICAL = "hierarchical"

COMBINES: Mapping[str, Callable[..., list[Tensor]]] = {
    "sharded_reduce": sharded_reduce,
    "ring_all_reduce": ring_all_reduce,
    HIERARCHICAL: hierarchical_reduce,
    ALL_REDUCE: all_reduce,
}
"""Option of ``combine`` -> its collective."""


def collective(combine: str, workers: int, workers_per_host: int | None) -> Combine:
    """Return the collective for an option of ``combine``. workers_per_host: for ``hierarchical``, None for the others.

    Raises ConfigError if the number of workers is not a multiple of ``workers_per_host``, or if ``workers_per_host``
    does not fit ``combine``.
    """
    if combine != HIERARCHICAL:
        if workers_per_host is not None:
            raise ConfigError(
                f"parallelism.workers_per_host={workers_per_host} with parallelism.combine={combine}: only "
                f"combine={HIERARCHICAL} has groups of workers; choose it, or set workers_per_host to null"
            )
        return COMBINES[combine]
    if workers_per_host is None or workers % workers_per_host:
        raise ConfigError(
            f"parallelism.workers_per_host={'null' if workers_per_host is None else workers_per_host} with "
            f"parallelism.combine={combine} and parallelism.workers={workers}: expected the number of workers of each "
            "host, which divides the number of workers"
        )
    return partial(COMBINES[combine], workers_per_host=workers_per_host)


SMALLEST = 8
"""A bucket may contain 1 / SMALLEST of the limit even if that is more than half of the remaining bytes."""


def exchange(
    graph: Graph, computed: Sequence[Gradients], devices: Sequence[str], combine: Combine, bucket_bytes: int
) -> list[Gradients]:
    """Sum the gradients and the statistics over all workers; return the results of each worker with the sums.

    computed: the results of each worker; worker k is on ``devices[k]``. Neighbouring gradients share a message of up to
    ``bucket_bytes``. The messages are exchanged in the order of backpropagation, from the last layer to the first.
    Statistics share the message of the last gradients: they exist earlier, but a separate message would cost more. A
    bucket has the name and layer of its first variable. ``settled`` is appended to ``state_updates`` unchanged. If the
    gradients of a table hold rows on all workers, the rows are not summed, but gathered (:func:`all_gather`).

    Bytes on the wire for tensors: all workers together send 2 (K - 1) times the bytes of one worker's tensors; with
    ``all_reduce``, K (K - 1) times.
    """
    count = len(computed[0].gradients)
    columns = [(own[0][0], [part for _, part in own]) for own in zip(*(each.parts for each in computed), strict=True)]
    sums: dict[int, Sequence[Gradient]] = {}
    tensors: dict[int, list[Tensor]] = {}
    # Gradients are exchanged from last to first, then statistics.
    for place in [*range(count)[::-1], *range(count, len(columns))]:
        variable, parts = columns[place]
        rows = [part for part in parts if isinstance(part, Rows)]
        with graph.layer(variable.layer), graph.absolute_scope(f"reduce/{variable.name}"):
            if len(rows) == len(parts):
                sums[place] = all_gather(graph, rows, devices, variable.name)
            else:
                tensors[place] = [dense(graph, part) for part in parts]
    for bucket in in_buckets([graph.spec(parts[0]).nbytes for parts in tensors.values()], bucket_bytes):
        places = [*tensors][bucket.start : bucket.stop]
        first = columns[places[0]][0]
        members = [[tensors[place][k] for place in places] for k in range(len(devices))]
        with graph.layer(first.layer):
            totals = combine_bucket(graph, members, devices, first.name, combine)
        sums.update(zip(places, zip(*totals, strict=True), strict=True))
    exchanged = [own.with_parts([sums[i][k] for i in range(len(columns))]) for k, own in enumerate(computed)]
    return [replace(own, state_updates=[*own.state_updates, *own.settled], settled=()) for own in exchanged]


def in_buckets(nbytes: Sequence[int], limit: int) -> list[range]:
    """Divide a sequence of tensors into buckets of at most ``limit`` bytes; a larger tensor has a separate bucket.

    A bucket also has at most half of the remaining bytes, or ``limit`` / 8 if this is more. No computation overlaps the
    last exchange, so the last buckets are small (Polychronopoulos and Kuck 1987, "Guided self-scheduling").
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
    """Combine several tensors as one message. parts and result: item [k][i] is tensor i of worker k, or its sum.

    Every message has a fixed cost, and most gradients are small. Packing does not change sums in worker order.
    """
    if len(parts[0]) == 1 or len(devices) == 1:
        totals = [combine(graph, [own[i] for own in parts], devices, name) for i in range(len(parts[0]))]
        return [[total[k] for total in totals] for k in range(len(devices))]
    shapes = [graph.spec(tensor).shape for tensor in parts[0]]

    def packed(k: int) -> Tensor:
        with graph.name_scope("packed"):
            return ops.concat(graph, [ops.reshape(graph, tensor, (-1,)) for tensor in parts[k]], axis=0)

    sums = combine(graph, _on_each(graph, devices, name, packed), devices, name)

    def unpacked(k: int) -> list[Tensor]:
        with graph.name_scope("unpacked"):
            flat = ops.split(graph, sums[k], 0, [math.prod(shape) for shape in shapes])
            return [ops.reshape(graph, part, shape) for part, shape in zip(flat, shapes, strict=True)]

    return _on_each(graph, devices, name, unpacked)
