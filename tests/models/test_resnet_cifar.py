from __future__ import annotations

import pytest

from runner.engine.tensor import Tensor
from runner.errors import ConfigError
from runner.models import ResNetCifar
from tests.models.support import (
    assert_gradients,
    assert_trainable,
    image_sizes,
    kinds,
    multiply_adds,
    network,
    parameter_count,
)
from tests.nn.support import Bench, initial_values

ALL = [
    ResNetCifar(depth=depth, block=block, unit=unit)
    for depth, block in ((8, "basic"), (11, "bottleneck"))
    for unit in ("original", "preactivation")
]


def layers_of(b: Bench, unit: str) -> list[str]:
    return [name.removeprefix(f"{unit}_") for name in kinds(b) if name.startswith(f"{unit}_")]


def summands(b: Bench, unit: str) -> tuple[Tensor, Tensor]:
    """What the sum at the end of a unit adds up: its branch and its shortcut."""
    branch, shortcut = b.net.graph.nodes[b.net.layer_outputs[f"{unit}_add"].node].inputs
    return branch, shortcut


@pytest.mark.parametrize(
    ("depth", "block", "unit", "classes", "parameters", "multiplied"),
    [
        (20, "basic", "preactivation", 10, 269_722, 40_551_040),
        (110, "basic", "original", 10, 1_727_962, 252_887_680),
        (110, "basic", "original", 100, 1_733_812, 252_893_440),
        (110, "basic", "preactivation", 10, 1_727_962, 252_887_680),
        (164, "bottleneck", "original", 10, 1_704_154, 244_500_992),
        (164, "bottleneck", "preactivation", 10, 1_703_258, 244_500_992),
        (164, "bottleneck", "preactivation", 100, 1_726_388, 244_524_032),
        (1001, "bottleneck", "original", 10, 10_328_602, 1_487_849_984),
        (1001, "bottleneck", "preactivation", 10, 10_327_706, 1_487_849_984),
        (1001, "bottleneck", "preactivation", 100, 10_350_836, 1_487_873_024),
        (1202, "basic", "original", 10, 19_421_274, 2_829_238_912),
    ],
)
def test_counts(depth: int, block: str, unit: str, classes: int, parameters: int, multiplied: int) -> None:
    b, _ = network(ResNetCifar(depth=depth, block=block, unit=unit), 3, 32, 32, classes=classes, examples=1)
    assert (parameter_count(b), multiply_adds(b)) == (parameters, multiplied)


@pytest.mark.parametrize(("depth", "block"), [(20, "basic"), (110, "basic"), (164, "bottleneck")])
@pytest.mark.parametrize("unit", ["original", "preactivation"])
def test_depth_counts_layers_with_weights_but_not_shortcuts(depth: int, block: str, unit: str) -> None:
    b, _ = network(ResNetCifar(depth=depth, block=block, unit=unit), 3, 32, 32, examples=1)
    weights = [v.name for v in b.net.variables if v.name.endswith("/weights") and "shortcut" not in v.name]
    assert len(weights) == depth
    assert [v.name for v in b.net.variables if v.name.endswith("/bias")] == ["fc/bias"]


@pytest.mark.parametrize(("block", "widest"), [("basic", (16, 32, 64)), ("bottleneck", (64, 128, 256))])
def test_stages_halve_the_image(block: str, widest: tuple[int, ...]) -> None:
    b, outputs = network(ResNetCifar(depth=20, block=block), 3, 32, 32)
    ends = [name for name in b.net.layer_outputs if name.endswith("_add")]
    sizes = list(dict.fromkeys(b.shape(b.net.layer_outputs[name])[1:] for name in ends))
    assert sizes == [(widest[0], 32, 32), (widest[1], 16, 16), (widest[2], 8, 8)]
    assert b.shape(b.net.layer_outputs["pool"]) == (2, widest[2])
    assert b.shape(outputs.logits) == (2, 10)


def test_bottlenecks_stride_on_their_first_convolution() -> None:
    b, _ = network(ResNetCifar(depth=11, block="bottleneck"), 3, 32, 32)
    sizes = {name: size for name, size in image_sizes(b).items() if name.startswith("stage2_unit1_conv")}
    assert sizes == {"stage2_unit1_conv1": (32, 16, 16), "stage2_unit1_conv3": (128, 16, 16)}


class TestOriginal:
    def test_basic_units(self) -> None:
        b, _ = network(ResNetCifar(depth=14, unit="original"), 3, 8, 8)
        outputs = b.net.layer_outputs
        assert list(outputs)[:3] == ["conv1", "norm1", "relu1"]
        assert list(outputs)[-4:] == ["stage3_unit2_relu2", "pool", "fc", "loss"]
        branch = ["conv1", "norm1", "relu1", "conv2", "norm2"]
        assert layers_of(b, "stage1_unit1") == [*branch, "add", "relu2"]
        assert layers_of(b, "stage2_unit1") == [*branch, "shortcut", "add", "relu2"]
        assert summands(b, "stage1_unit1") == (outputs["stage1_unit1_norm2"], outputs["relu1"])
        assert summands(b, "stage2_unit2") == (outputs["stage2_unit2_norm2"], outputs["stage2_unit1_relu2"])

    def test_projections_are_normalised(self) -> None:
        b, _ = network(ResNetCifar(depth=20, block="bottleneck", unit="original"), 3, 8, 8)
        branch = ["conv1", "norm1", "relu1", "conv2", "norm2", "relu2", "conv3", "norm3"]
        for stage in (1, 2, 3):
            assert layers_of(b, f"stage{stage}_unit1") == [*branch, "shortcut", "shortcut_norm", "add", "relu3"]
            assert layers_of(b, f"stage{stage}_unit2") == [*branch, "add", "relu3"]
        assert summands(b, "stage1_unit1")[1] == b.net.layer_outputs["stage1_unit1_shortcut_norm"]


class TestPreactivation:
    def test_the_first_unit_is_activated_before_its_ways_part(self) -> None:
        b, _ = network(ResNetCifar(depth=14), 3, 8, 8)
        outputs = b.net.layer_outputs
        branch = ["norm1", "relu1", "conv1", "norm2", "relu2", "conv2"]
        assert layers_of(b, "stage1_unit1") == [*branch, "add"]
        assert summands(b, "stage1_unit1") == (outputs["stage1_unit1_conv2"], outputs["stage1_unit1_relu1"])
        assert list(outputs)[-5:] == ["last_norm", "last_relu", "pool", "fc", "loss"]

    def test_shortcuts_without_weights_pass_on_what_is_not_activated(self) -> None:
        b, _ = network(ResNetCifar(depth=14), 3, 8, 8)
        outputs = b.net.layer_outputs
        assert summands(b, "stage1_unit2")[1] == outputs["stage1_unit1_add"]
        padded = b.net.graph.nodes[outputs["stage2_unit1_shortcut"].node]
        strided = b.net.graph.nodes[padded.inputs[0].node]
        assert strided.inputs == (outputs["stage1_unit2_add"],)

    def test_projections_are_plain_convolutions_of_what_is_activated(self) -> None:
        b, _ = network(ResNetCifar(depth=20, block="bottleneck"), 3, 8, 8)
        outputs = b.net.layer_outputs
        branch = ["norm1", "relu1", "conv1", "norm2", "relu2", "conv2", "norm3", "relu3", "conv3"]
        for stage in (1, 2, 3):
            unit = f"stage{stage}_unit1"
            assert layers_of(b, unit) == [*branch, "shortcut", "add"]
            projection = b.net.graph.nodes[outputs[f"{unit}_shortcut"].node]
            assert projection.inputs[0] == outputs[f"{unit}_relu1"]
            assert summands(b, f"stage{stage}_unit2")[1] == outputs[f"{unit}_add"]


@pytest.mark.parametrize("model", ALL, ids=lambda model: f"{model.block}-{model.unit}")
def test_gradients(model: ResNetCifar) -> None:
    assert_gradients(*network(model, 2, 6, 5, classes=3, examples=4))


def test_training_graph_of_many_layers() -> None:
    assert_trainable(*network(ResNetCifar(depth=1001, block="bottleneck"), 3, 32, 32, examples=1))


def test_weights_are_drawn_to_keep_the_size_of_gradients() -> None:
    b, _ = network(ResNetCifar(depth=11, block="bottleneck"), 3, 8, 8)
    values = {tensor.node: value for tensor, value in initial_values(b.net).items()}
    # 64 -> 64 of 3x3 and 64 -> 256 of 1x1: 36,864 and 16,384 draws, within 2.3 % at four sigma.
    assert values["stage3_unit1_conv2/weights"].std() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.023)
    assert values["stage3_unit1_conv3/weights"].std() == pytest.approx((2 / 256) ** 0.5, rel=0.023)
    assert abs(values["fc/weights"]).max() == pytest.approx(256**-0.5, rel=0.01)


def test_setting_of_the_averages_reaches_the_layers() -> None:
    b, _ = network(ResNetCifar(depth=8, norm_decay=0.75), 3, 8, 8)
    assert {update.decay for update in b.net.state_updates} == {0.75}
    assert len(b.net.state_updates) == 2 * (3 * 2 + 1)


@pytest.mark.parametrize("model", ALL, ids=lambda model: f"{model.block}-{model.unit}")
def test_a_single_pixel_will_do(model: ResNetCifar) -> None:
    _, outputs = network(model, 1, 1, 1)
    assert outputs.logits


@pytest.mark.parametrize(
    ("depth", "block", "valid"),
    [
        (21, "basic", r"6n\+2 for model.block=basic: 8, 14, 20, \.\.\."),
        (2, "basic", r"6n\+2 for model.block=basic: 8, 14, 20, \.\.\."),
        (-4, "basic", r"6n\+2 for model.block=basic: 8, 14, 20, \.\.\."),
        (32, "bottleneck", r"9n\+2 for model.block=bottleneck: 11, 20, 29, \.\.\."),
        (1001, "basic", r"6n\+2 for model.block=basic"),
    ],
)
def test_impossible_depths(depth: int, block: str, valid: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model.depth={depth}: expected {valid}"):
        ResNetCifar(depth=depth, block=block)


def test_unknown_blocks_and_units() -> None:
    with pytest.raises(ConfigError, match=r"^model.block='wide': expected one of basic, bottleneck$"):
        ResNetCifar(block="wide")
    with pytest.raises(ConfigError, match=r"^model.unit='v2': expected one of original, preactivation$"):
        ResNetCifar(unit="v2")


def test_impossible_decay() -> None:
    with pytest.raises(ConfigError, match=r"^model.norm_decay=1.0: expected a number from 0 to below 1$"):
        ResNetCifar(norm_decay=1.0)
