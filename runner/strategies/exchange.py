"""The exchange of gradients and statistics between workers, in buckets, by a collective."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.engine.graph.graph import Graph
from runner.engine.graph.network import StateUpdate
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.variables import Variable
from runner.strategies.collectives import (
    Combine,
    all_reduce,
    combine_bucket,
    in_buckets,
    ring_all_reduce,
    sharded_reduce,
)
from runner.strategies.replica import Gradients

ALL_REDUCE = "all_reduce"

COMBINES: dict[str, Combine] = {
    "sharded_reduce": sharded_reduce,
    "ring_all_reduce": ring_all_reduce,
    ALL_REDUCE: all_reduce,
}
"""Collectives by the name they have in a configuration."""


@dataclass(frozen=True)
class Totals:
    """The results of the exchange on one worker: summed gradients, and moving averages with their new values."""

    gradients: list[tuple[Variable, Tensor]]
    state_updates: list[StateUpdate]


def exchange(
    graph: Graph, computed: Sequence[Gradients], devices: Sequence[str], combine: Combine, bucket_bytes: int
) -> list[Totals]:
    """Sum the gradients and the parts of statistics of all workers; returns the sums on each worker.

    computed: of worker k, on ``devices[k]``. Neighbouring gradients share a message of up to ``bucket_bytes``. They are
    exchanged in the order of backpropagation, from the last layer to the first. Statistics share the message of the
    last gradients: they exist earlier, but a separate message would cost more.

    Bytes: those of the collective for each bucket; all workers together send 2 (K - 1) times the summed bytes, and
    K (K - 1) times with ``all_reduce``.
    """
    backward = [list(reversed(each.gradients)) for each in computed]
    of = [*(variable for variable, _ in backward[0]), *(each.variable for each in computed[0].state_updates)]
    parts = [
        [*(gradient for _, gradient in pairs), *(each.batch_value for each in own.state_updates)]
        for pairs, own in zip(backward, computed, strict=True)
    ]
    sums = _in_buckets(graph, of, parts, devices, combine, bucket_bytes)
    return [_totals(own, total) for own, total in zip(computed, sums, strict=True)]


def _in_buckets(
    graph: Graph,
    of: Sequence[Variable],
    parts: Sequence[Sequence[Tensor]],
    devices: Sequence[str],
    combine: Combine,
    bucket_bytes: int,
) -> list[list[Tensor]]:
    """Sum tensor i of all workers, parts[k][i], for every i; returns the sums on every worker.

    of: the variable of each tensor; a bucket has the name and the layer of its first variable.
    """
    sums: list[list[Tensor]] = [[] for _ in devices]
    sizes = [graph.spec(tensor).nbytes for tensor in parts[0]]
    for bucket in in_buckets(sizes, bucket_bytes):
        first, members = of[bucket.start], [[own[i] for i in bucket] for own in parts]
        with graph.layer(first.layer):
            totals = combine_bucket(graph, members, devices, first.name, combine)
        for own, total in zip(sums, totals, strict=True):
            own += total
    return sums


def _totals(computed: Gradients, sums: Sequence[Tensor]) -> Totals:
    count = len(computed.gradients)
    backward, statistics = sums[:count], sums[count:]
    pairs = [(variable, total) for (variable, _), total in zip(computed.gradients, backward[::-1], strict=True)]
    summed = [
        replace(update, batch_value=statistic)
        for update, statistic in zip(computed.state_updates, statistics, strict=True)
    ]
    return Totals(pairs, [*summed, *computed.settled])
