from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.models import AlexNet
from tests.models.support import (
    assert_gradients,
    assert_trainable,
    image_sizes,
    multiply_adds,
    network,
    parameter_count,
)
from tests.nn.support import Bench, initial_values

SMALL = AlexNet(conv4=3, units=5)


def imagenet(model: AlexNet, side: int = 224) -> Bench:
    b, outputs = network(model, 3, side, side, classes=1000, examples=1)
    assert b.shape(outputs.logits) == (1, 1000)
    return b


@pytest.mark.parametrize(("crop", "side"), [("ceil", 224), ("pad", 224), ("valid", 227)])
def test_sizes_are_those_of_the_paper_in_every_crop(crop: str, side: int) -> None:
    b = imagenet(AlexNet(crop=crop), side)
    assert image_sizes(b) == {
        "conv1": (64, 55, 55),
        "pool1": (64, 27, 27),
        "conv2": (192, 27, 27),
        "pool2": (192, 13, 13),
        "conv3": (384, 13, 13),
        "conv4": (256, 13, 13),
        "pool5": (256, 6, 6),
    }
    assert (parameter_count(b), multiply_adds(b)) == (61_100_840, 714_188_480)


def test_conv4_of_the_footnote() -> None:
    b = imagenet(AlexNet(conv4=384))
    assert (parameter_count(b), multiply_adds(b)) == (61_838_248, 838_788_800)


def test_order_of_layers() -> None:
    b, _ = network(SMALL, 3, 64, 64)
    convolutions = "conv1 norm1 relu1 pool1 conv2 relu2 norm2 pool2 conv3 relu3 conv4 relu4 conv5 relu5 pool5"
    dense = "flatten fc6 relu6 dropout6 fc7 relu7 dropout7 fc8 loss"
    assert list(b.net.layer_outputs) == [*convolutions.split(), *dense.split()]


def test_without_normalisation_and_dropout() -> None:
    b, _ = network(AlexNet(conv4=3, units=5, lrn=False, dropout=0.0), 3, 64, 64)
    assert not {"norm1", "norm2"} & b.net.layer_outputs.keys()
    assert not {"local_response_normalization", "dropout_mask"} & {node.op for node in b.net.graph}


def test_normalisation_is_that_of_cuda_convnet_unless_it_is_changed() -> None:
    def attributes(model: AlexNet) -> list[dict[str, object]]:
        b, _ = network(model, 3, 64, 64)
        return [dict(node.attributes) for node in b.net.graph if node.op == "local_response_normalization"]

    released = {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0, "divide_by_size": True}
    assert attributes(SMALL) == [released, released]
    changed = {**released, "alpha": 0.5, "divide_by_size": False}
    assert attributes(AlexNet(conv4=3, units=5, lrn_alpha=0.5, lrn_divide_by_size=False)) == [changed, changed]


def test_initial_values_are_those_of_cuda_convnet() -> None:
    b, _ = network(AlexNet(units=64), 3, 64, 64)
    values = {tensor.node: value for tensor, value in initial_values(b.net).items()}
    biases = {name.split("/")[0]: set(value.tolist()) for name, value in values.items() if name.endswith("/bias")}
    ones = {name: {1.0} for name in ("conv2", "conv4", "conv5", "fc6", "fc7")}
    assert biases == {"conv1": {0.0}, "conv3": {0.0}, "fc8": {-7.0}, **ones}
    for name, stddev in {"conv1": 0.01, "conv2": 0.01, "conv3": 0.03, "conv5": 0.03, "fc6": 0.01}.items():
        # 16,384 draws and more: within 2.3 % at four sigma.
        assert values[f"{name}/weights"].std() == pytest.approx(stddev, rel=0.023)


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_training_graph(loss: str) -> None:
    assert_trainable(*network(AlexNet(loss=loss), 3, 224, 224, classes=1000, examples=1))


def test_gradients() -> None:
    assert_gradients(*network(AlexNet(conv4=3, units=5, lrn_alpha=0.1), 3, 64, 67, classes=3, examples=2))


@pytest.mark.parametrize(
    ("crop", "side", "layer"),
    [("ceil", 63, "pool5"), ("pad", 62, "pool5"), ("valid", 66, "pool5"), ("valid", 9, "conv1")],
)
def test_images_that_are_too_small(crop: str, side: int, layer: str) -> None:
    network(AlexNet(conv4=3, units=5, crop=crop), 3, 67, 67)
    with pytest.raises(ConfigError, match=rf"^layer '{layer}' \(\w+\): its windows of .* need images of at least"):
        network(AlexNet(conv4=3, units=5, crop=crop), 3, side, 67)


def test_unknown_crop() -> None:
    with pytest.raises(ConfigError, match=r"^model.crop='same': expected one of ceil, pad, valid$"):
        AlexNet(crop="same")


@pytest.mark.parametrize("key", ["conv4", "units"])
def test_no_units(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model.{key}=0: expected a whole number above 0$"):
        AlexNet(**{key: 0})  # type: ignore[arg-type]


def test_impossible_factors() -> None:
    with pytest.raises(ConfigError, match=r"^model.lrn_alpha=nan: expected a finite number above 0$"):
        AlexNet(lrn_alpha=float("nan"))
    with pytest.raises(ConfigError, match=r"^model.dropout=1.0: expected a number from 0 to below 1$"):
        AlexNet(dropout=1.0)
