"""Functions shared by the peers: variables in channels-last shapes, and divisors of average pooling."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.problem import Layer

Array = NDArray[Any]

TO_NHWC = (0, 2, 3, 1)
"""Axes of an (N, C, H, W) array in the order (N, H, W, C)."""


def channels_last(layer: Layer, role: str, values: Array) -> Array:
    """Return a variable of a layer for a network whose images are (N, H, W, C).

    Filters (O, C, R, S) become (R, S, C, O). The weights of a dense layer whose input is a flattened image have their
    rows reordered from (C, H, W) to (H, W, C), so that the layer computes the same function.
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
    """Return the number of counted pixels in every window of an average pooling layer, (H', W') float32."""
    settings = layer.settings
    window, strides = settings["window"], settings["strides"]
    if settings["count_padding"]:
        return np.full(layer.shape[2:], window[0] * window[1], np.float32)
    edges = (settings["padding"][:2], settings["padding"][2:])
    sides = zip(settings["image"], window, strides, edges, layer.shape[2:], strict=True)
    rows, columns = (_inside(*side) for side in sides)
    return np.outer(rows, columns).astype(np.float32)


def _inside(size: int, window: int, stride: int, edges: Sequence[int], count: int) -> Array:
    """Return how many pixels of each of ``count`` windows along one axis are inside the image."""
    starts = np.arange(count) * stride - edges[0]
    return np.minimum(starts + window, size) - np.maximum(starts, 0)
