"""Mean and spread of images, channel by channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Few enough that a chunk in float64 takes a few megabytes.
_VALUES_PER_CHUNK = 1 << 20


def channel_statistics(images: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of ``images`` (N, C, H, W), N at least 1.

    Two passes in float64, chunk by chunk in the order of the examples: the same images give the same bits.
    """
    per_channel = images.size // images.shape[1]
    mean = sum(chunk.sum(axis=(0, 2, 3)) for chunk in _chunks(images)) / per_channel
    centre = np.reshape(mean, (1, -1, 1, 1))
    squares = sum(np.square(chunk - centre).sum(axis=(0, 2, 3)) for chunk in _chunks(images))
    return tuple(map(float, mean)), tuple(map(float, np.sqrt(squares / per_channel)))


def _chunks(images: NDArray[Any]) -> Iterator[NDArray[np.float64]]:
    rows = max(1, _VALUES_PER_CHUNK // max(1, images[0].size))
    for start in range(0, len(images), rows):
        yield images[start : start + rows].astype(np.float64)
