"""Splits that keep the share of every class."""

from __future__ import annotations

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
    out = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = philox.permutation(philox.key(seed, f"{name}/split/{label}"), len(members))
        out[members[order[: held_out(len(members), fraction)]]] = True
    return np.flatnonzero(~out), np.flatnonzero(out)
