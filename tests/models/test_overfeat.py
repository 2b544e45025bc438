from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.models import Overfeat
from tests.models.support import (
    assert_gradients,
    assert_trainable,
    image_sizes,
    multiply_adds,
    network,
    parameter_count,
)

SMALL = Overfeat(filters=[2, 3, 3, 2, 3], units=[4, 5])


def test_sizes_at_231x231() -> None:
    b, outputs = network(Overfeat(), 3, 231, 231, classes=1000, examples=1)
    assert image_sizes(b) == {
        "conv1": (96, 56, 56),
        "pool1": (96, 28, 28),
        "conv2": (256, 24, 24),
        "pool2": (256, 12, 12),
        "conv3": (512, 12, 12),
        "conv4": (1024, 12, 12),
        "pool5": (1024, 6, 6),
    }
    assert (parameter_count(b), multiply_adds(b)) == (145_920_872, 2_801_403_904)
    assert_trainable(b, outputs)


def test_order_of_layers() -> None:
    b, _ = network(SMALL, 3, 71, 71)
    convolutions = "conv1 relu1 pool1 conv2 relu2 pool2 conv3 relu3 conv4 relu4 conv5 relu5 pool5"
    dense = "flatten fc6 relu6 dropout6 fc7 relu7 dropout7 fc8 loss"
    assert list(b.net.layer_outputs) == [*convolutions.split(), *dense.split()]
    assert {node.attributes["rate"] for node in b.net.graph if node.op == "dropout_mask"} == {0.5}


def test_gradients() -> None:
    assert_gradients(*network(SMALL, 3, 71, 79, classes=3, examples=3))


def test_images_that_are_too_small() -> None:
    with pytest.raises(ConfigError, match=r"^layer 'pool5' \(pool\): .* at least 2x2, but they are 1x2 here"):
        network(SMALL, 3, 70, 71)


def test_other_numbers_of_layers() -> None:
    with pytest.raises(ConfigError, match=r"^model.filters=\[96\]: expected 5 whole numbers above 0$"):
        Overfeat(filters=[96])
    with pytest.raises(ConfigError, match=r"^model.units=\[1, 2, 3\]: expected 2 whole numbers above 0$"):
        Overfeat(units=[1, 2, 3])


def test_impossible_dropout() -> None:
    with pytest.raises(ConfigError, match=r"^model.dropout=-0.5: expected a number from 0 to below 1$"):
        Overfeat(dropout=-0.5)
