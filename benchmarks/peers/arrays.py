"""Shared by peers: variables in the shapes of channels-last networks, and divisors of average pooling."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.problem import Layer

Array = NDArray[Any]

TO_NHWC = (0, 2, 3, 1)
"""Axes of (N, C, H, W) in the order of (N, H, W, C)."""


def channels_last(layer: Layer, role: str, values: Array) -> Array:
    """Return a variable of a layer for a network whose images are (N, H, W, C).

    Filters (O, C, R, S) become (R, S, C, O). The rows of a dense layer after a flattened image are put in the order
    of that network's features, so that the two compute the same.
    """
    if role == "weights" and layer.kind == "conv":
        return np.ascontiguousarray(values.transpose(2, 3, 1, 0))
    if role == "weights" and layer.kind == "dense" and layer.settings["image"] is not None:
        image = layer.settings["image"]
        features, units = values.shape
        by_place = values.reshape(*image, units).transpose(*range(1, len(image)), 0, len(image))
        return np.ascontiguousarray(by_place.reshape(features, units))
    return values


def places(layer: Layer) -> Array:
    """Return the number of places that count in every window of an average pooling layer, (H', W') float32."""
    settings = layer.settings
    window, strides = settings["window"], settings["strides"]
    if settings["count_padding"]:
        return np.full(layer.shape[2:], window[0] * window[1], np.float32)
    edges = (settings["padding"][:2], settings["padding"][2:])
    sides = zip(settings["image"], window, strides, edges, layer.shape[2:], strict=True)
    rows, columns = (_inside(*side) for side in sides)
    return np.outer(rows, columns).astype(np.float32)


def _inside(size: int, window: int, stride: int, edges: Sequence[int], count: int) -> Array:
    """Return how many places of each of ``count`` windows along a side are inside the image."""
    starts = np.arange(count) * stride - edges[0]
    inside: Array = np.minimum(starts + window, size) - np.maximum(starts, 0)
    return inside
