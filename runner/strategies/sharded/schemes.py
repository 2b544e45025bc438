"""The schemes of Krizhevsky 2014, section 4: which examples go through the dense layers together."""

from collections.abc import Sequence
from itertools import accumulate

from runner.errors import ConfigError
from runner.strategies.replica import Share, shares

SCHEMES = ("a", "b", "c")

Examples = tuple[Share, ...]
"""The examples of one pass: for each worker, the range lo..hi-1 within its share of the batch."""


def dense_passes(scheme: str, batch_size: int, workers: int, fc_batch: int | None) -> list[Examples]:
    """Return the passes of a batch through the dense layers, in order.

    a: one pass of all examples. b: one worker's examples after the other's. c: the same fraction of every worker's
    examples in each pass, up to whole examples. In b and c there are K passes if one update of the dense layers uses
    the whole batch (``fc_batch`` None or the batch), otherwise batch_size / fc_batch passes of fc_batch examples, with
    an update after each. With K passes, pass i of b is the share of worker i. With fewer, a pass has examples of
    several workers; if fc_batch does not divide the shares, a pass has the last examples of one worker and the first of
    the next.

    Raises ConfigError if fc_batch does not divide the batch, or if it is smaller than the batch in scheme a.
    """
    held = [hi - lo for lo, hi in shares(batch_size, workers)]
    updates = updates_per_batch(scheme, batch_size, fc_batch)
    if scheme == "a":
        return [tuple((0, count) for count in held)]
    sizes = held if updates == 1 else [batch_size // updates] * updates
    return _cut(_in_order(scheme, held), sizes, workers)


def updates_per_batch(scheme: str, batch_size: int, fc_batch: int | None) -> int:
    """Return the number of updates of the dense layers in a step; raises as :func:`dense_passes`."""
    if fc_batch is None or fc_batch == batch_size:
        return 1
    if scheme == "a":
        raise ConfigError(
            f"parallelism.fc_batch={fc_batch} with parallelism.scheme=a and train.batch_size={batch_size}: scheme a "
            "has one pass of the whole batch; use scheme=b or c, or fc_batch=null"
        )
    if batch_size % fc_batch:
        raise ConfigError(
            f"parallelism.fc_batch={fc_batch}: expected a divisor of train.batch_size={batch_size}, "
            "or null for the whole batch"
        )
    return batch_size // fc_batch


def _in_order(scheme: str, held: Sequence[int]) -> list[int]:
    """Return the owner of each example, in the order in which examples go through the dense layers."""
    if scheme == "b":
        return [worker for worker, count in enumerate(held) for _ in range(count)]
    # All workers proceed at the same relative pace: i / n of a share comes before its example i of n.
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
