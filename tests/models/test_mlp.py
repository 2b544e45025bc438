from __future__ import annotations

import numpy as np
import pytest

from runner.errors import ConfigError
from runner.models import Mlp
from tests.models.support import assert_gradients, network, parameter_count
from tests.nn.support import normal


def test_default_layers() -> None:
    b, outputs = network(Mlp(), 1, 28, 28)
    assert list(b.net.layer_outputs) == ["flatten", "fc1", "relu1", "fc2", "relu2", "fc3", "loss"]
    assert b.shape(outputs.logits) == (2, 10)
    assert parameter_count(b) == (784 + 1) * 512 + (512 + 1) * 512 + (512 + 1) * 10


def test_is_dense_layers_with_relu_between() -> None:
    b, outputs = network(Mlp(hidden=[6]), 1, 3, 4)
    w1, w2 = normal(12, 6, seed=2), normal(6, 10, seed=3)
    b.set("fc1/weights", w1)
    b.set("fc2/weights", w2)
    pixels = b.feeds[b.x].reshape(2, 12)
    np.testing.assert_allclose(b.value(outputs.logits), np.maximum(pixels @ w1, 0) @ w2, rtol=0, atol=1e-12)


def test_no_hidden_layer_is_logistic_regression() -> None:
    b, _ = network(Mlp(hidden=[]), 3, 5, 4, classes=7)
    assert list(b.net.layer_outputs) == ["flatten", "fc1", "loss"]
    assert parameter_count(b) == (60 + 1) * 7


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_gradients(loss: str) -> None:
    assert_gradients(*network(Mlp(hidden=[7, 5], loss=loss), 2, 3, 3, classes=4, examples=5))


def test_a_width_of_zero() -> None:
    with pytest.raises(ConfigError, match=r"^model.hidden=\[64, 0\]: expected whole numbers above 0$"):
        Mlp(hidden=[64, 0])


def test_unknown_loss() -> None:
    with pytest.raises(ConfigError, match=r"^model.loss='hinge': expected one of softmax, logistic$"):
        Mlp(loss="hinge")
