"""The sizes of all models, most of which papers state: parameters, multiply-adds, layers, and shapes of outputs."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

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
    VggD,
)
from runner.models.residual import UNITS
from tests.nn.support import assert_trainable, kinds, multiply_adds, network, parameter_count

Image = tuple[int, int, int]

IMAGENET, CIFAR, MNIST = (3, 224, 224), (3, 32, 32), (1, 28, 28)


@dataclass(frozen=True)
class Facts:
    """The size of a network. layers: kind -> number of layers. outputs: ``name:shape`` of some layers, without N."""

    model: Model
    image: Image
    classes: int
    parameters: int
    multiply_adds: int
    layers: dict[str, int]
    outputs: str = ""


def layers(conv: int, dense: int, norm: int = 0, pool: int = 0) -> dict[str, int]:
    counts = {"conv": conv, "dense": dense, "norm": norm, "pool": pool}
    return {kind: count for kind, count in counts.items() if count}


def resnet(
    depth: int, block: str, unit: str, classes: int, parameters: int, multiply_adds: int, shortcut: str = "identity"
) -> Facts:
    """Return facts of a residual network.

    Norm layers: one per convolution, but none for gates, or for projections without a norm layer before the sum.
    """
    convolutions = {"single": 1, "basic": 2, "bottleneck": 3}[block]
    gates = (depth - 2) // convolutions if "gating" in shortcut else 0
    projections = (depth - 2) // convolutions if shortcut == "conv1x1" else 3 if block == "bottleneck" else 0
    norms = depth - 1 + (0 if unit in ("bn_after_addition", "preactivation") else projections)
    widest = (64, 128, 256) if block == "bottleneck" else (16, 32, 64)
    sizes = zip((1, 2, 3), widest, (32, 16, 8), strict=True)
    ends = " ".join(f"stage{stage}_unit1_add:{width}x{side}x{side}" for stage, width, side in sizes)
    return Facts(
        ResNetCifar(depth=depth, block=block, unit=unit, shortcut=shortcut),
        CIFAR,
        classes,
        parameters,
        multiply_adds,
        layers(depth - 1 + projections + gates, 1, norm=norms, pool=1),
        f"conv1:16x32x32 {ends} pool:{widest[2]}",
    )


def imagenet_resnet(depth: int, unit: str, parameters: int, multiply_adds: int) -> Facts:
    """Return facts of a residual network of bottlenecks for 1000 classes.

    Norm layers: one per convolution, but none for the projections of preactivation units, which end with one more.
    """
    norms = depth - 1 + (4 if unit == "original" else 1)
    ends = " ".join(
        f"stage{stage}_unit1_add:{width}x{side}x{side}"
        for stage, width, side in zip((1, 2, 3, 4), (256, 512, 1024, 2048), (56, 28, 14, 7), strict=True)
    )
    return Facts(
        ResNetImageNet(depth=depth, unit=unit),
        IMAGENET,
        1000,
        parameters,
        multiply_adds,
        layers(depth - 1 + 4, 1, norm=norms, pool=2),
        f"conv1:64x112x112 pool1:64x56x56 {ends} pool:2048",
    )


LENET = "conv1:20x24x24 pool1:20x12x12 conv2:50x8x8 pool2:50x4x4 flatten:800 fc1:500 relu1:500"
ALEXNET = (
    "conv1:64x55x55 pool1:64x27x27 conv2:192x27x27 pool2:192x13x13 conv3:384x13x13 conv4:256x13x13 pool5:256x6x6 "
    "flatten:9216 fc6:4096"
)
CIFAR_ALEXNET = (
    "conv1:24x32x32 pool1:24x16x16 conv2:32x16x16 pool2:32x8x8 conv3:48x8x8 conv4:48x8x8 pool5:32x4x4 fc6:512"
)
CIFAR_CONVNET = "stage1_conv1:32x32x32 stage1_pool:32x16x16 stage2_pool:64x8x8 stage3_pool:128x4x4 fc1:128"
OVERFEAT = (
    "conv1:96x56x56 pool1:96x28x28 conv2:256x24x24 pool2:256x12x12 conv3:512x12x12 conv4:1024x12x12 "
    "pool5:1024x6x6 fc6:3072 fc7:4096"
)
VGG_A = (
    "stage1_conv1:64x224x224 stage1_pool:64x112x112 stage2_conv1:128x112x112 stage2_pool:128x56x56 "
    "stage3_conv1:256x56x56 stage3_pool:256x28x28 stage4_conv1:512x28x28 stage4_pool:512x14x14 "
    "stage5_pool:512x7x7 fc1:4096 fc2:4096"
)
VGG_D = VGG_A.replace("512x7x7", "512x7x7 stage5_conv3:512x14x14")
ALEXNET_2012 = "conv1:96x55x55 pool1:96x27x27 conv2:256x27x27 pool2:256x13x13 conv4:384x13x13 pool5:256x6x6"
INCEPTION_BN = (
    "pool1:64x56x56 pool2:192x28x28 inception_3a_concat:256x28x28 inception_3b_concat:320x28x28 "
    "inception_3c_concat:576x14x14 inception_4a_concat:576x14x14 inception_4b_concat:576x14x14 "
    "inception_4c_concat:608x14x14 inception_4d_concat:608x14x14 inception_4e_concat:1056x7x7 "
    "inception_5a_concat:1024x7x7 inception_5b_concat:1024x7x7 pool5:1024"
)
INCEPTION_V3 = (
    "stem_1:32x149x149 stem_4:64x73x73 stem_7:192x35x35 inception_5b_concat:256x35x35 inception_5c_concat:288x35x35 "
    "inception_5d_concat:288x35x35 inception_6a_concat:768x17x17 inception_6e_concat:768x17x17 "
    "inception_7a_concat:1280x8x8 inception_7b_concat:2048x8x8 inception_7c_concat:2048x8x8 pool:2048"
)
GOOGLENET = (
    "conv1:64x112x112 pool1:64x56x56 conv2:192x56x56 pool2:192x28x28 inception_3a_concat:256x28x28 "
    "inception_3b_concat:480x28x28 pool3:480x14x14 inception_4a_concat:512x14x14 inception_4b_concat:512x14x14 "
    "inception_4c_concat:512x14x14 inception_4d_concat:528x14x14 inception_4e_concat:832x14x14 pool4:832x7x7 "
    "inception_5a_concat:832x7x7 inception_5b_concat:1024x7x7 pool5:1024"
)


def alexnet(parameters: int = 61_100_840, multiply_adds: int = 714_188_480, side: int = 224, **settings: Any) -> Facts:
    image, outputs = (3, side, side), "conv4:384x13x13" if "conv4" in settings else ALEXNET
    counts = layers(5, 3, norm=2 if settings.get("lrn", True) else 0, pool=3)
    return Facts(AlexNet(**settings), image, 1000, parameters, multiply_adds, counts, outputs)


def googlenet(lrn: bool, dropout: float) -> Facts:
    counts = layers(57, 1, norm=2 if lrn else 0, pool=14)
    return Facts(GoogLeNet(lrn=lrn, dropout=dropout), IMAGENET, 1000, 6_998_552, 1_582_671_872, counts, GOOGLENET)


RESNET_110, RESNET_110_ADDS = 1_727_962, 252_887_680
"""Parameters and multiply-adds of ResNet-110 with single or basic blocks of any unit, if shortcuts have no weights."""
STAGES = ((16, 16, 32), (16, 32, 16), (32, 64, 8))
"""Channels of the input, channels and side of the images of each stage of a network of basic blocks."""
CHANNELS_110 = sum(18 * width for _, width, _ in STAGES)
POINTWISE_110 = sum((inputs + 17 * width) * width for inputs, width, _ in STAGES)
POINTWISE_ADDS_110 = sum((inputs + 17 * width) * width * side**2 for inputs, width, side in STAGES)
"""Weights and multiply-adds of one 1x1 convolution per unit of ResNet-110."""


FACTS: dict[str, Facts] = {
    "lenet": Facts(LeNet(), MNIST, 10, 431_080, 2_293_000, layers(2, 2, pool=2), LENET),
    "mlp": Facts(Mlp(), MNIST, 10, 669_706, 668_672, layers(0, 3), "flatten:784 fc1:512 relu1:512 fc2:512"),
    "logistic regression": Facts(Mlp(hidden=[]), (3, 5, 4), 7, 427, 420, layers(0, 1), "flatten:60"),
    "cifar_alexnet": Facts(CifarAlexNet(), CIFAR, 10, 600_010, 10_384_384, layers(5, 3, pool=3), CIFAR_ALEXNET),
    "cifar_convnet": Facts(CifarConvNet(), CIFAR, 10, 551_146, 38_896_896, layers(6, 2, norm=7, pool=3), CIFAR_CONVNET),
    **{
        f"alexnet crop={crop}": alexnet(side=side, crop=crop)
        for crop, side in (("ceil", 224), ("pad", 224), ("valid", 227))
    },
    "alexnet conv4=384": alexnet(61_838_248, 838_788_800, conv4=384),
    "alexnet lrn=false": alexnet(lrn=False),
    "overfeat": Facts(Overfeat(), (3, 231, 231), 1000, 145_920_872, 2_801_403_904, layers(5, 3, pool=3), OVERFEAT),
    "vgg_a": Facts(VggA(), IMAGENET, 1000, 132_863_336, 7_609_090_048, layers(8, 3, pool=5), VGG_A),
    "googlenet": googlenet(lrn=True, dropout=0.4),
    "googlenet lrn=false dropout=0": googlenet(lrn=False, dropout=0.0),
    "googlenet auxiliary_weight=0.3": Facts(
        GoogLeNet(auxiliary_weight=0.3),
        IMAGENET,
        1000,
        13_378_280,
        1_591_044_096,
        layers(59, 5, norm=2, pool=16),
        GOOGLENET,
    ),
    "vgg_d": Facts(VggD(), IMAGENET, 1000, 138_357_544, 15_470_264_320, layers(13, 3, pool=5), VGG_D),
    "alexnet_2012": Facts(
        AlexNet2012(), IMAGENET, 1000, 60_965_224, 724_406_816, layers(5, 3, norm=2, pool=3), ALEXNET_2012
    ),
    "distbelief_speech": Facts(
        Mlp(hidden=[2560] * 4, activation="sigmoid"), (1, 11, 40), 8192, 41_777_152, 41_758_720, layers(0, 5)
    ),
    "distbelief_vision": Facts(
        DistBeliefVision(),
        (3, 100, 100),
        21_000,
        30_188_528,
        30_090_400,
        layers(3, 1, norm=3, pool=3),
        "stage1_filter:8x91x91 stage1_pool:8x45x45 stage2_norm:8x17x17 stage3_pool:8x3x3",
    ),
    "inception_bn": Facts(
        InceptionBn(), IMAGENET, 1000, 11_285_224, 2_032_600_064, layers(69, 1, norm=69, pool=13), INCEPTION_BN
    ),
    "inception_v3": Facts(
        InceptionV3(), (3, 299, 299), 1000, 27_143_152, 5_718_899_296, layers(96, 2, norm=96, pool=15), INCEPTION_V3
    ),
    "inception_v3 auxiliary_weight=0": Facts(
        InceptionV3(auxiliary_weight=0.0),
        (3, 299, 299),
        1000,
        23_817_352,
        5_713_216_096,
        layers(94, 1, norm=94, pool=14),
        INCEPTION_V3,
    ),
    "inception_v3, 1001 classes": Facts(
        InceptionV3(), (3, 299, 299), 1001, 27_145_970, 5_718_902_112, layers(96, 2, norm=96, pool=15), INCEPTION_V3
    ),
    "resnet-50 original": imagenet_resnet(50, "original", 25_557_032, 3_857_973_248),
    "resnet-50": imagenet_resnet(50, "preactivation", 25_557_032 - 7_552, 3_857_973_248),
    "resnet-101 original": imagenet_resnet(101, "original", 44_549_160, 7_570_194_432),
    "resnet-152 original": imagenet_resnet(152, "original", 60_192_808, 11_282_415_616),
    "resnet-152": imagenet_resnet(152, "preactivation", 60_185_256, 11_282_415_616),
    "resnet-200 original": imagenet_resnet(200, "original", 64_673_832, 14_776_270_848),
    "resnet-200": imagenet_resnet(200, "preactivation", 64_666_280, 14_776_270_848),
    "resnet-20": resnet(20, "basic", "preactivation", 10, 269_722, 40_551_040),
    "resnet-20 bottleneck": resnet(20, "bottleneck", "preactivation", 10, 219_482, 30_591_488),
    "resnet-110 original": resnet(110, "basic", "original", 10, 1_727_962, 252_887_680),
    "resnet-110 original, 100 classes": resnet(110, "basic", "original", 100, 1_733_812, 252_893_440),
    "resnet-110": resnet(110, "basic", "preactivation", 10, 1_727_962, 252_887_680),
    "resnet-164 original": resnet(164, "bottleneck", "original", 10, 1_704_154, 244_500_992),
    "resnet-164": resnet(164, "bottleneck", "preactivation", 10, 1_703_258, 244_500_992),
    "resnet-164, 100 classes": resnet(164, "bottleneck", "preactivation", 100, 1_726_388, 244_524_032),
    "resnet-1001 original": resnet(1001, "bottleneck", "original", 10, 10_328_602, 1_487_849_984),
    "resnet-1001": resnet(1001, "bottleneck", "preactivation", 10, 10_327_706, 1_487_849_984),
    "resnet-1001, 100 classes": resnet(1001, "bottleneck", "preactivation", 100, 10_350_836, 1_487_873_024),
    **{
        f"resnet-110 {block} {unit}": resnet(110, block, unit, 10, RESNET_110, RESNET_110_ADDS)
        for block, units in (("single", ("original", "preactivation")), ("basic", tuple(UNITS)[1:4]))
        for unit in units
    },
    **{
        f"resnet-110 {shortcut}": resnet(
            110, "basic", "original", 10, RESNET_110 + added, RESNET_110_ADDS + multiply_adds, shortcut
        )
        for shortcut, added, multiply_adds in (
            ("constant", 0, 0),
            ("dropout", 0, 0),
            # A gate has a bias per channel, and a normalized convolution has gamma and beta.
            ("exclusive_gating", POINTWISE_110 + CHANNELS_110, POINTWISE_ADDS_110),
            ("shortcut_only_gating", POINTWISE_110 + CHANNELS_110, POINTWISE_ADDS_110),
            ("conv1x1", POINTWISE_110 + 2 * CHANNELS_110, POINTWISE_ADDS_110),
        )
    },
    # Without the normalization of projections, bn_after_addition has gamma and beta of 64 + 128 + 256 channels less.
    "resnet-164 bn_after_addition": resnet(164, "bottleneck", "bn_after_addition", 10, 1_704_154 - 896, 244_500_992),
    **{
        f"resnet-164 {unit}": resnet(164, "bottleneck", unit, 10, 1_704_154, 244_500_992)
        for unit in ("relu_before_addition", "relu_only_preactivation")
    },
    "resnet-1202 original": resnet(1202, "basic", "original", 10, 19_421_274, 2_829_238_912),
}


DEEP = ("resnet-1001", "resnet-1202", "resnet-152", "resnet-200")
"""Networks whose graphs, and above all the gradients in them, take seconds to build."""


@pytest.mark.parametrize(
    "label", [pytest.param(each, marks=[pytest.mark.slow] if each.startswith(DEEP) else []) for each in FACTS]
)
def test_a_network_has_the_expected_sizes(label: str) -> None:
    facts = FACTS[label]
    b, outputs = network(facts.model, *facts.image, classes=facts.classes, examples=1)
    assert (parameter_count(b), multiply_adds(b)) == (facts.parameters, facts.multiply_adds)
    assert b.shape(outputs.prediction) == (1, facts.classes)
    counted = Counter(kinds(b).values())
    assert {kind: counted[kind] for kind in ("conv", "dense", "norm", "pool") if counted[kind]} == facts.layers
    expected = dict(each.split(":") for each in facts.outputs.split())
    found = {name: "x".join(map(str, b.shape(b.net.layer_outputs[name])[1:])) for name in expected}
    assert found == expected
    assert_trainable(b, outputs)
