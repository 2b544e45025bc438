"""The order in which an epoch visits the examples of a split: a pure function of seed, epoch and settings."""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Count, SmallCount
from runner.kernels import philox


@dataclass
class Shuffle:
    """The settings for shuffling the examples of an epoch.

    window: null to permute all examples, which reads a file at random places; or a number W, for disks that are slow at
    random reads. With W, files are visited in random order, and examples are moved by less than W places.
    interleave: number of files that are read in turn, one example each; used with a window only.
    """

    window: Count | None = None
    interleave: SmallCount = 16


def epoch_order(shuffle: Shuffle, shards: NDArray[np.int64], seed: int, stream: str) -> NDArray[np.int64]:
    """Return a permutation (N,) int64 of the examples.

    shards: the numbers of examples in each file; sum N. stream: name of the random stream of the epoch.
    """
    count = int(shards.sum())
    if shuffle.window is None:
        return philox.permutation(philox.key(seed, stream), count)
    visited = philox.permutation(philox.key(seed, f"{stream}/shards"), len(shards))
    order = _interleaved(shards, shuffle.interleave, visited)
    draws = philox.uniform(philox.key(seed, f"{stream}/window"), np.arange(count, dtype=np.int64), 1)[:, 0]
    # Example i gets the key i + W * u, with u in [0, 1), so it can pass only examples fewer than W places before it.
    return order[np.argsort(np.arange(count) + shuffle.window * draws, kind="stable")]


def _interleaved(shards: NDArray[np.int64], lanes: int, visited: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the examples of all shards, read from ``lanes`` shards in turn; the next shard replaces a finished shard.

    visited: the order of the shards.
    """
    starts = np.cumsum(shards) - shards
    free = [(0, lane) for lane in range(lanes)]
    turns, examples, of_lane = [], [], []
    for shard in visited:
        turn, lane = heapq.heappop(free)
        size = int(shards[shard])
        turns.append(np.arange(turn, turn + size))
        examples.append(np.arange(starts[shard], starts[shard] + size))
        of_lane.append(np.full(size, lane))
        heapq.heappush(free, (turn + size, lane))
    order = np.lexsort((np.concatenate(of_lane), np.concatenate(turns)))
    interleaved: NDArray[np.int64] = np.concatenate(examples)[order].astype(np.int64)
    return interleaved
