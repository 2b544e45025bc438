"""Facts about all models, one table per kind: layer order, rates, gradients, smallest images, wrong settings."""

from collections.abc import Callable

import pytest

from runner.errors import ConfigError
from runner.models import (
    AlexNet,
    AlexNet2012,
    CifarAlexNet,
    CifarConvNet,
    DistBeliefVision,
    GoogLeNet,
    InceptionBn,
    InceptionV3,
    LeNet,
    Mlp,
    Model,
    Overfeat,
    ResNetCifar,
    ResNetImageNet,
    VggA,
)
from runner.models.residual import BLOCKS, SHORTCUTS, UNITS
from tests.nn.support import assert_gradients, network

Image = tuple[int, int, int]

MNIST = (1, 28, 28)
LENETS = {(1, 16, 16): (1, 1), (3, 32, 32): (5, 5), (1, 8, 8): (2, 2), (1, 28, 15): (7, 3), (2, 4, 5): (1, 1)}


@pytest.mark.parametrize("image", LENETS)
def test_sizes_of_lenet_follow_the_image(image: Image) -> None:
    b, outputs = network(LeNet(), *image, classes=3)
    assert b.shape(b.net.layer_outputs["pool2"])[2:] == LENETS[image]
    assert b.shape(outputs.prediction) == (2, 3)


LARGE_NETWORKS = "conv1 relu1 pool1 conv2 relu2 pool2 conv3 relu3 conv4 relu4 conv5 relu5 pool5 flatten"
DENSE = "fc6 relu6 dropout6 fc7 relu7 dropout7 fc8 loss"
SMALL_ALEXNET = AlexNet(conv4=3, units=5)
SMALL_OVERFEAT = Overfeat(filters=[2, 3, 3, 2, 3], units=[4, 5])
SMALL_VGG = VggA(widths=[2, 3, 2, 3, 4], units=5)

ORDERS: dict[str, tuple[Model, Image, str]] = {
    "alexnet": (
        SMALL_ALEXNET,
        (3, 64, 64),
        f"{LARGE_NETWORKS} {DENSE}".replace("conv1 relu1", "conv1 norm1 relu1").replace("relu2", "relu2 norm2"),
    ),
    "alexnet lrn=false": (AlexNet(conv4=3, units=5, lrn=False), (3, 64, 64), f"{LARGE_NETWORKS} {DENSE}"),
    "cifar_alexnet": (CifarAlexNet(filters=[2] * 5, units=3), (3, 8, 8), f"{LARGE_NETWORKS} {DENSE}"),
    "overfeat": (SMALL_OVERFEAT, (3, 71, 71), f"{LARGE_NETWORKS} {DENSE}"),
    "vgg_a": (
        SMALL_VGG,
        (3, 32, 32),
        "stage1_conv1 stage1_relu1 stage1_pool stage2_conv1 stage2_relu1 stage2_pool "
        + "".join(f"stage{i}_conv1 stage{i}_relu1 stage{i}_conv2 stage{i}_relu2 stage{i}_pool " for i in (3, 4, 5))
        + "flatten fc1 fc1_relu fc1_dropout fc2 fc2_relu fc2_dropout fc3 loss",
    ),
    "cifar_convnet": (
        CifarConvNet(widths=[4], units=5),
        (3, 6, 5),
        "stage1_conv1 stage1_norm1 stage1_relu1 stage1_conv2 stage1_norm2 stage1_relu2 stage1_pool stage1_dropout "
        "flatten fc1 fc1_norm fc1_relu fc1_dropout fc2 loss",
    ),
    "lenet": (LeNet(), MNIST, "conv1 pool1 conv2 pool2 flatten fc1 relu1 fc2 loss"),
    "mlp": (Mlp(), MNIST, "flatten fc1 relu1 fc2 relu2 fc3 loss"),
    "mlp of sigmoids": (Mlp(activation="sigmoid"), MNIST, "flatten fc1 sigmoid1 fc2 sigmoid2 fc3 loss"),
    "alexnet_2012": (
        AlexNet2012(units=5),
        (3, 64, 64),
        f"{LARGE_NETWORKS} {DENSE}".replace("relu1", "relu1 norm1").replace("relu2", "relu2 norm2"),
    ),
    "logistic regression": (Mlp(hidden=[]), MNIST, "flatten fc1 loss"),
}


@pytest.mark.parametrize("label", ORDERS)
def test_layers_have_the_expected_order(label: str) -> None:
    model, image, expected = ORDERS[label]
    b, _ = network(model, *image)
    assert list(b.net.layer_outputs) == expected.split()


RATES: dict[str, tuple[Model, Image, set[float], set[float]]] = {
    "alexnet": (SMALL_ALEXNET, (3, 64, 64), {0.5}, set()),
    "alexnet dropout=0": (AlexNet(conv4=3, units=5, dropout=0.0), (3, 64, 64), set(), set()),
    "cifar_alexnet": (CifarAlexNet(filters=[2, 3, 4, 5, 6], units=7, dropout=0.125), (3, 8, 8), {0.125}, set()),
    "cifar_convnet": (CifarConvNet(widths=[4], units=5, dropout=0.125, norm_decay=0.75), (3, 4, 4), {0.125}, {0.75}),
    "googlenet": (GoogLeNet(), (3, 32, 32), {0.4}, set()),
    "googlenet auxiliary_weight=0.3": (GoogLeNet(auxiliary_weight=0.3), (3, 80, 80), {0.4, 0.7}, set()),
    "alexnet_2012": (AlexNet2012(units=5), (3, 64, 64), {0.5}, set()),
    "inception_bn": (InceptionBn(norm_decay=0.75), (3, 32, 32), set(), {0.75}),
    "inception_v3": (InceptionV3(norm_decay=0.75), (3, 107, 107), {0.2}, {0.75}),
    "resnet_imagenet": (ResNetImageNet(depth=18, block="basic", norm_decay=0.75), (3, 32, 32), set(), {0.75}),
    "overfeat": (SMALL_OVERFEAT, (3, 71, 71), {0.5}, set()),
    "resnet_cifar": (ResNetCifar(depth=8, norm_decay=0.75), (3, 8, 8), set(), {0.75}),
    "resnet_cifar dropout": (
        ResNetCifar(depth=8, unit="original", shortcut="dropout", shortcut_dropout=0.25),
        (3, 8, 8),
        {0.25},
        {0.9},
    ),
    "vgg_a": (SMALL_VGG, (3, 32, 32), {0.5}, set()),
}


@pytest.mark.parametrize("label", RATES)
def test_dropout_and_averages_have_the_expected_rates(label: str) -> None:
    model, image, dropouts, decays = RATES[label]
    b, _ = network(model, *image)
    assert {node.attributes["rate"] for node in b.net.graph if node.op == "dropout_mask"} == dropouts
    assert {update.decay for update in b.net.state_updates} == decays
    normalized = [node for node in b.net.graph if node.op == "batch_norm"]
    assert len(b.net.state_updates) == 2 * len(normalized)


DEPTHS = {"single": 5, "basic": 8, "bottleneck": 11}
RESNETS = [
    *(ResNetCifar(depth=DEPTHS[block], block=block, unit=unit) for block in BLOCKS for unit in UNITS),
    *(ResNetCifar(depth=8, unit="original", shortcut=shortcut) for shortcut in SHORTCUTS if shortcut != "identity"),
]

GRADIENTS: dict[str, tuple[Model, Image, int, bool]] = {
    "alexnet": (AlexNet(conv4=3, units=5, lrn_alpha=0.1), (3, 64, 67), 2, True),
    "cifar_alexnet": (CifarAlexNet(filters=[2, 2, 3, 2, 3], units=4), (2, 5, 6), 3, True),
    "cifar_alexnet in evaluation": (CifarAlexNet(filters=[2, 2, 3, 2, 3], units=4), (2, 5, 6), 3, False),
    "cifar_convnet": (CifarConvNet(widths=[3, 4], units=5), (2, 5, 6), 6, True),
    "cifar_convnet in evaluation": (CifarConvNet(widths=[3, 4], units=5), (2, 5, 6), 6, False),
    "lenet padded": (LeNet(filters=[2, 3], units=4), (1, 8, 7), 2, True),
    "lenet": (LeNet(filters=[2, 3], units=4), (2, 16, 17), 2, True),
    "mlp": (Mlp(hidden=[7, 5]), (2, 3, 3), 5, True),
    **{
        f"mlp with {activation}": (Mlp(hidden=[7, 5], activation=activation), (2, 3, 3), 5, True)
        for activation in ("gelu", "sigmoid", "tanh")
    },
    "distbelief_vision": (DistBeliefVision(filters=2, patch=3, stages=2), (2, 14, 15), 3, True),
    "overfeat": (SMALL_OVERFEAT, (3, 71, 79), 3, True),
    "vgg_a": (SMALL_VGG, (3, 32, 35), 3, True),
    **{f"resnet_cifar {model.block} {model.unit} {model.shortcut}": (model, (2, 5, 5), 4, True) for model in RESNETS},
}


@pytest.mark.parametrize("label", GRADIENTS)
def test_gradients_equal_finite_differences(label: str) -> None:
    model, image, examples, training = GRADIENTS[label]
    assert_gradients(*network(model, *image, classes=3, examples=examples, training=training))


TOO_SMALL: dict[str, tuple[Model, Image, Image, str]] = {
    "alexnet": (SMALL_ALEXNET, (3, 64, 67), (3, 63, 67), "layer 'pool5' (pool)"),
    "alexnet crop=pad": (AlexNet(conv4=3, units=5, crop="pad"), (3, 63, 67), (3, 62, 67), "layer 'pool5' (pool)"),
    "alexnet crop=valid": (AlexNet(conv4=3, units=5, crop="valid"), (3, 67, 67), (3, 66, 67), "layer 'pool5' (pool)"),
    "alexnet conv1": (AlexNet(conv4=3, units=5, crop="valid"), (3, 67, 67), (3, 9, 67), "layer 'conv1' (conv)"),
    "cifar_convnet": (CifarConvNet(), (3, 8, 8), (3, 7, 7), "layer 'stage3_pool' (pool)"),
    "googlenet": (GoogLeNet(), (3, 31, 31), (3, 16, 31), "layer 'pool4' (pool)"),
    "distbelief_vision": (DistBeliefVision(stages=1), (3, 12, 12), (3, 9, 12), "layer 'stage1_filter' (conv)"),
    "inception_v3": (
        InceptionV3(auxiliary_weight=0),
        (3, 75, 75),
        (3, 74, 75),
        "layer 'inception_7a_branch1_2' (conv)",
    ),
    "inception_v3 with its head": (InceptionV3(), (3, 107, 107), (3, 106, 107), "layer 'aux_pool' (pool)"),
    "lenet": (LeNet(), (1, 4, 4), (1, 3, 4), "layer 'pool2' (pool)"),
    "overfeat": (SMALL_OVERFEAT, (3, 71, 71), (3, 70, 71), "layer 'pool5' (pool)"),
    "vgg_a": (SMALL_VGG, (3, 32, 32), (3, 31, 32), "layer 'stage5_pool' (pool)"),
}


@pytest.mark.parametrize("label", TOO_SMALL)
def test_an_image_below_the_smallest_size_is_refused(label: str) -> None:
    model, enough, too_small, layer = TOO_SMALL[label]
    network(model, *enough)
    with pytest.raises(ConfigError) as caught:
        network(model, *too_small)
    assert str(caught.value).startswith(f"{layer}: windows of ")
    assert "need images of at least" in str(caught.value)


@pytest.mark.parametrize("model", RESNETS, ids=lambda model: f"{model.block}-{model.unit}-{model.shortcut}")
def test_residual_networks_accept_a_single_pixel(model: ResNetCifar) -> None:
    _, outputs = network(model, 1, 1, 1)
    assert outputs.prediction


REFUSED: dict[str, Callable[[], Model]] = {
    "model.crop='same': expected one of ceil, pad, valid": lambda: AlexNet(crop="same"),
    "model.filters=[1, 2]: expected 5 numbers": lambda: CifarAlexNet(filters=[1, 2]),
    "model.filters=[20]: expected 2 numbers": lambda: LeNet(filters=[20]),
    "model.filters=[96]: expected 5 numbers": lambda: Overfeat(filters=[96]),
    "model.units=[1, 2, 3]: expected 2 numbers": lambda: Overfeat(units=[1, 2, 3]),
    "model.widths=[64, 128]: expected 5 numbers": lambda: VggA(widths=[64, 128]),
    "model.activation='swish': expected one of relu, gelu, sigmoid, tanh": lambda: Mlp(activation="swish"),
    "model.depth=51: expected one of 50, 101, 152, 200 for model.block=bottleneck": lambda: ResNetImageNet(depth=51),
    "model.block='single': expected one of basic, bottleneck": lambda: ResNetImageNet(block="single"),
    "model.block='wide': expected one of single, basic, bottleneck": lambda: ResNetCifar(block="wide"),
    "model.unit='v2': expected one of original, bn_after_addition, relu_before_addition, relu_only_preactivation, "
    "preactivation": lambda: ResNetCifar(unit="v2"),
    "model.shortcut='none': expected one of identity, constant, exclusive_gating, shortcut_only_gating, conv1x1, "
    "dropout": lambda: ResNetCifar(shortcut="none"),
    **{
        f"model.shortcut={shortcut}: expected identity with model.unit={unit}; use model.unit=original": (
            lambda shortcut=shortcut, unit=unit: ResNetCifar(shortcut=shortcut, unit=unit)
        )
        for shortcut, unit in zip(tuple(SHORTCUTS)[1:], [*tuple(UNITS)[1:], "preactivation"], strict=True)
    },
    **{
        f"model.{key}=0.25: expected the default, {default}, with model.shortcut={shortcut}; only {readers} reads it": (
            lambda key=key, shortcut=shortcut: ResNetCifar(unit="original", shortcut=shortcut, **{key: 0.25})
        )
        for key, default, shortcut, readers in (
            ("shortcut_scale", 0.5, "identity", "constant"),
            ("branch_scale", 0.5, "dropout", "constant"),
            ("gate_bias", -6.0, "constant", "exclusive_gating or shortcut_only_gating"),
            ("shortcut_dropout", 0.5, "conv1x1", "dropout"),
        )
    },
    **{
        f"model.depth={depth}: expected {step}n+2 for model.block={block}: {smallest}, ...": (
            lambda depth=depth, block=block: ResNetCifar(depth=depth, block=block)
        )
        for depth, block, step, smallest in (
            *((depth, "basic", 6, "8, 14, 20") for depth in (21, 2, -4, 1001)),
            (32, "bottleneck", 9, "11, 20, 29"),
            (111, "single", 3, "5, 8, 11"),
        )
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_an_impossible_setting_is_refused(message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        REFUSED[message]()
    assert str(caught.value) == message
