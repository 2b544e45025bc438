"""Which examples go through the dense layers together: the schemes of Krizhevsky 2014, section 4, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from runner.errors import ConfigError
from runner.strategies.replica import Share, shares

SCHEMES = ("a", "b", "c")

Examples = tuple[Share, ...]
"""The examples of one pass: of each worker, lo..hi-1 of its own share of the batch."""


def dense_passes(scheme: str, batch_size: int, workers: int, fc_batch: int | None) -> list[Examples]:
    """Return the passes of a batch through the dense layers, in order.

    a: one pass of all examples. b: as the workers hold them, one worker after the other. c: of every worker as near to
    the same part as whole examples allow. In b and c there are K passes if one update of the dense layers sees the
    whole batch (``fc_batch`` None or the batch), otherwise batch_size / fc_batch passes of fc_batch examples, with an
    update after each. With K passes, in b pass i is the share of worker i; with fewer, a pass is of several workers,
    and where fc_batch does not fit into the shares, it takes the last examples of one and the first of the next.

    Raises ConfigError where fc_batch is no divisor of the batch, or smaller than it in scheme a.
    """
    held = [hi - lo for lo, hi in shares(batch_size, workers)]
    updates = updates_per_batch(scheme, batch_size, fc_batch)
    if scheme == "a":
        return [tuple((0, count) for count in held)]
    sizes = held if updates == 1 else [batch_size // updates] * updates
    return _cut(_in_order(scheme, held), sizes, workers)


def updates_per_batch(scheme: str, batch_size: int, fc_batch: int | None) -> int:
    """How often the dense layers are updated in a step; errors are those of :func:`dense_passes`."""
    if fc_batch is None or fc_batch == batch_size:
        return 1
    if scheme == "a":
        raise ConfigError(
            f"parallelism.fc_batch={fc_batch} with parallelism.scheme=a and train.batch_size={batch_size}: scheme a "
            "passes the whole batch through the dense layers at once; use scheme=b or c, or fc_batch=null"
        )
    if batch_size % fc_batch:
        raise ConfigError(
            f"parallelism.fc_batch={fc_batch}: expected a divisor of train.batch_size={batch_size}, "
            "or null for the whole batch"
        )
    return batch_size // fc_batch


def _in_order(scheme: str, held: Sequence[int]) -> list[int]:
    """The owner of each example, in the order in which examples go through the dense layers."""
    if scheme == "b":
        return [worker for worker, count in enumerate(held) for _ in range(count)]
    # All workers go through their shares at the same pace: example i of n has i / n of them before it.
    places = [(i / count, worker) for worker, count in enumerate(held) for i in range(count)]
    return [worker for _, worker in sorted(places)]


def _cut(owners: Sequence[int], sizes: Sequence[int], workers: int) -> list[Examples]:
    gone = [0] * workers
    passes = []
    for end, size in zip(accumulate(sizes), sizes, strict=True):
        members = owners[end - size : end]
        counts = [members.count(worker) for worker in range(workers)]
        passes.append(tuple((lo, lo + count) for lo, count in zip(gone, counts, strict=True)))
        gone = [lo + count for lo, count in zip(gone, counts, strict=True)]
    return passes
