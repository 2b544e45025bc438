"""Splits that keep the share of every class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from runner.kernels import philox


def held_out(examples: int, fraction: float) -> int:
    """Return how many of the ``examples`` (at least 2) of a class are held out: never none, never all."""
    return min(max(round(examples * fraction), 1), examples - 1)


def stratified_split(
    labels: NDArray[np.int64], fraction: float, seed: int, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted indices (kept, held out) of a split that holds out ``fraction`` of every class.

    Which examples are held out depends on (seed, name, class) only.
    """
    classes, counts = np.unique(labels, return_counts=True)
    taken = [held_out(int(count), fraction) for count in counts]
    return _drawn(labels, dict(zip(classes.tolist(), taken, strict=True)), seed, f"{name}/split")


def validation_split(
    labels: NDArray[np.int64], examples: int, seed: int, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted indices (kept, held out) of a split that holds out exactly ``examples``, less than all.

    Every class gives its share of them, rounded by the method of largest remainders, with lots drawn where these are
    equal; a class is emptied only where there is no other way. Which examples are held out depends on (seed, name,
    labels) only.
    """
    classes, counts = np.unique(labels, return_counts=True)
    taken, remainders = np.divmod(counts * examples, len(labels))
    ties = philox.permutation(philox.key(seed, f"{name}/val"), len(classes))
    order = np.lexsort((ties, -remainders, taken + 1 >= counts))
    taken[order[: examples - taken.sum()]] += 1
    return _drawn(labels, dict(zip(classes.tolist(), taken.tolist(), strict=True)), seed, f"{name}/val")


def _drawn(
    labels: NDArray[np.int64], taken: Mapping[int, int], seed: int, stream: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hold out so many examples of each class, drawn from a stream of its own."""
    out = np.zeros(len(labels), bool)
    for label, count in taken.items():
        members = np.flatnonzero(labels == label)
        order = philox.permutation(philox.key(seed, f"{stream}/{label}"), len(members))
        out[members[order[:count]]] = True
    return np.flatnonzero(~out), np.flatnonzero(out)
