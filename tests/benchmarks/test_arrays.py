"""Variables for channels-last networks, and what average pooling divides by."""

import numpy as np

from benchmarks.peers.arrays import TO_NHWC, channels_last, places
from benchmarks.problem import Layer


def test_filters_put_their_places_first() -> None:
    layer = Layer("conv1", "conv", ("x",), (1, 4, 2, 2), {"weights": "w", "bias": "b"})
    filters = np.arange(4 * 3 * 2 * 5).reshape(4, 3, 2, 5)
    turned = channels_last(layer, "weights", filters)
    assert turned.shape == (2, 5, 3, 4)
    assert turned[1, 4, 2, 3] == filters[3, 2, 1, 4]
    assert turned.flags.c_contiguous
    assert channels_last(layer, "bias", filters[:, 0, 0, 0]) is not None


def test_a_dense_layer_after_a_flattened_image_computes_the_same() -> None:
    random = np.random.default_rng(0)
    x, weights = random.standard_normal((2, 3, 4, 5)), random.standard_normal((60, 7))
    layer = Layer("fc", "dense", ("flat",), (2, 7), {"weights": "w"}, {"image": [3, 4, 5]})
    turned = channels_last(layer, "weights", weights)
    flat = x.transpose(TO_NHWC).reshape(2, -1)
    np.testing.assert_allclose(flat @ turned, x.reshape(2, -1) @ weights, rtol=1e-12)


def test_other_variables_stay_as_they_are() -> None:
    values = np.ones((60, 7))
    dense = Layer("fc", "dense", ("relu",), (2, 7), {"weights": "w"}, {"image": None})
    assert channels_last(dense, "weights", values) is values


def test_places_count_positions_inside_the_image() -> None:
    settings = {"window": [3, 2], "strides": [2, 2], "padding": [1, 0, 0, 1], "image": [4, 3], "count_padding": False}
    layer = Layer("pool", "avg_pool", ("x",), (1, 1, 2, 2), {}, settings)
    np.testing.assert_array_equal(places(layer), [[4, 2], [6, 3]])
    counted = Layer("pool", "avg_pool", ("x",), (1, 1, 2, 2), {}, {**settings, "count_padding": True})
    np.testing.assert_array_equal(places(counted), [[6, 6], [6, 6]])
