from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.models import LeNet
from tests.models.support import assert_gradients, network, parameter_count


def test_is_caffes_at_28x28() -> None:
    b, outputs = network(LeNet(), 1, 28, 28)
    shapes = {name: b.shape(tensor)[1:] for name, tensor in b.net.layer_outputs.items()}
    assert shapes == {
        "conv1": (20, 24, 24),
        "pool1": (20, 12, 12),
        "conv2": (50, 8, 8),
        "pool2": (50, 4, 4),
        "flatten": (800,),
        "fc1": (500,),
        "relu1": (500,),
        "fc2": (10,),
        "loss": (),
    }
    assert b.shape(outputs.logits) == (2, 10)
    assert parameter_count(b) == 431_080


@pytest.mark.parametrize(
    ("shape", "last_pool"),
    [
        ((1, 16, 16), (1, 1)),
        ((3, 32, 32), (5, 5)),
        ((1, 8, 8), (2, 2)),
        ((1, 28, 15), (7, 3)),
        ((2, 4, 5), (1, 1)),
    ],
)
def test_sizes_follow_the_input(shape: tuple[int, int, int], last_pool: tuple[int, int]) -> None:
    b, outputs = network(LeNet(), *shape, classes=3)
    assert b.shape(b.net.layer_outputs["pool2"])[2:] == last_pool
    assert b.shape(outputs.logits) == (2, 3)


def test_images_that_are_too_small() -> None:
    with pytest.raises(ConfigError, match=r"layer 'pool2' \(pool\): .* at least 2x2, but they are 1x2 here"):
        network(LeNet(), 1, 3, 4)


@pytest.mark.parametrize("shape", [(1, 8, 7), (2, 16, 17)])
def test_gradients(shape: tuple[int, int, int]) -> None:
    assert_gradients(*network(LeNet(filters=[2, 3], units=4), *shape, classes=3, examples=2))


def test_other_than_two_convolutions() -> None:
    with pytest.raises(ConfigError, match=r"^model.filters=\[20\]: expected 2 whole numbers above 0$"):
        LeNet(filters=[20])


def test_no_units() -> None:
    with pytest.raises(ConfigError, match=r"^model.units=0: expected a whole number above 0$"):
        LeNet(units=0)
