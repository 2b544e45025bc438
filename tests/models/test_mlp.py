from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.models import Mlp
from tests.models.support import assert_gradients, network, parameter_count


def test_default_layers() -> None:
    b, outputs = network(Mlp(), 1, 28, 28)
    assert list(b.net.layer_outputs) == ["flatten", "fc1", "relu1", "fc2", "relu2", "fc3", "loss"]
    assert b.shape(outputs.logits) == (2, 10)
    assert parameter_count(b) == (784 + 1) * 512 + (512 + 1) * 512 + (512 + 1) * 10


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
