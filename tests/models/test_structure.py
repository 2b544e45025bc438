"""Properties of single models: the tensors that layers read, normalization and initial values."""

import numpy as np
import pytest

from runner.engine.graph.tensor import Tensor
from runner.models import AlexNet, CifarAlexNet, CifarConvNet, GoogLeNet, Mlp, ResNetCifar
from tests.models.support import kinds, multiply_adds, network, parameter_count
from tests.nn.support import Bench, initial_values, normal


def test_mlp_is_dense_layers_with_relu_between() -> None:
    b, outputs = network(Mlp(hidden=[6]), 1, 3, 4)
    w1, w2 = normal(12, 6, seed=2), normal(6, 10, seed=3)
    b.set("fc1/weights", w1)
    b.set("fc2/weights", w2)
    pixels = b.feeds[b.x].reshape(2, 12)
    np.testing.assert_allclose(b.value(outputs.logits), np.maximum(pixels @ w1, 0) @ w2, rtol=0, atol=1e-12)


def test_alexnet_normalizes_as_cuda_convnet_by_default() -> None:
    def attributes(**settings: float) -> list[dict[str, object]]:
        b, _ = network(AlexNet(conv4=3, units=5, **settings), 3, 64, 64)  # type: ignore[arg-type]
        return [dict(node.attributes) for node in b.net.graph if node.op == "local_response_normalization"]

    released = {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0, "divide_by_size": True}
    assert attributes() == [released, released]
    changed = {**released, "alpha": 0.5, "divide_by_size": False}
    assert attributes(lrn_alpha=0.5, lrn_divide_by_size=False) == [changed, changed]


def test_alexnet_begins_as_cuda_convnet() -> None:
    b, _ = network(AlexNet(units=64), 3, 64, 64)
    values = {tensor.node: value for tensor, value in initial_values(b.net).items()}
    biases = {name.split("/")[0]: set(value.tolist()) for name, value in values.items() if name.endswith("/bias")}
    ones = {name: {1.0} for name in ("conv2", "conv4", "conv5", "fc6", "fc7")}
    assert biases == {"conv1": {0.0}, "conv3": {0.0}, "fc8": {-7.0}, **ones}
    for name, stddev in {"conv1": 0.01, "conv2": 0.01, "conv3": 0.03, "conv5": 0.03, "fc6": 0.01}.items():
        # 16,384 draws and more: within 2.3 % at four sigma.
        assert values[f"{name}/weights"].std() == pytest.approx(stddev, rel=0.023)


def test_cifar_alexnet_computes_in_convolutions_and_stores_in_dense_layers() -> None:
    b, _ = network(CifarAlexNet(), 3, 32, 32)
    dense = sum(v.spec.size for v in b.net.variables if v.name.startswith("fc"))
    assert dense / parameter_count(b) > 0.85
    assert dense / multiply_adds(b) < 0.06


def test_cifar_alexnet_has_the_widths_of_its_settings() -> None:
    b, _ = network(CifarAlexNet(filters=[2, 3, 4, 5, 6], units=7), 3, 8, 8)
    names = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6")
    assert [b.shape(b.net.layer_outputs[name])[1] for name in names] == [2, 3, 4, 5, 6, 7]


def test_normalized_layers_of_cifar_convnet_have_no_bias() -> None:
    b, _ = network(CifarConvNet(), 3, 32, 32)
    assert [v.name for v in b.net.variables if v.name.endswith("/bias")] == ["fc2/bias"]


def test_evaluation_neither_drops_nor_advances_averages() -> None:
    b, _ = network(CifarConvNet(widths=[4], units=5), 3, 4, 4, training=False)
    assert not b.net.state_updates
    assert not [node for node in b.net.graph if node.op in ("dropout_mask", "batch_norm")]


def test_googlenet_before_and_after_its_modules() -> None:
    b, _ = network(GoogLeNet(), 3, 32, 32)
    layers = list(b.net.layer_outputs)
    stem = "conv1 conv1_relu pool1 norm1 conv2_reduce conv2_reduce_relu conv2 conv2_relu norm2 pool2"
    assert layers[:10] == stem.split()
    assert layers[-4:] == ["pool5", "dropout", "fc", "loss"]


def test_an_inception_module() -> None:
    b, _ = network(GoogLeNet(), 3, 64, 64)
    outputs = b.net.layer_outputs
    module = {name.removeprefix("inception_3b_"): kind for name, kind in kinds(b).items() if "_3b_" in name}
    branches = ["1x1", "3x3_reduce", "3x3", "5x5_reduce", "5x5"]
    convolved = {
        f"{branch}{part}": kind for branch in branches for part, kind in (("", "conv"), ("_relu", "activation"))
    }
    pooled = {"pool": "pool", "pool_project": "conv", "pool_project_relu": "activation"}
    assert module == {**convolved, **pooled, "concat": "merge"}
    concat = b.net.graph.nodes[outputs["inception_3b_concat"].node]
    ends = [f"inception_3b_{branch}_relu" for branch in ("1x1", "3x3", "5x5", "pool_project")]
    assert concat.inputs == tuple(outputs[name] for name in ends)
    assert [b.shape(tensor)[1] for tensor in concat.inputs] == [128, 192, 96, 64]


# Residual networks.


def layers_of(b: Bench, unit: str) -> list[str]:
    return [name.removeprefix(f"{unit}_") for name in kinds(b) if name.startswith(f"{unit}_")]


def summands(b: Bench, unit: str) -> tuple[Tensor, Tensor]:
    """Return the inputs of the sum at the end of a unit: its branch and its shortcut."""
    branch, shortcut = b.net.graph.nodes[b.net.layer_outputs[f"{unit}_add"].node].inputs
    return branch, shortcut


@pytest.mark.parametrize(("depth", "block"), [(20, "basic"), (110, "basic"), (164, "bottleneck")])
@pytest.mark.parametrize("unit", ["original", "preactivation"])
def test_depth_counts_layers_with_weights_but_not_shortcuts(depth: int, block: str, unit: str) -> None:
    b, _ = network(ResNetCifar(depth=depth, block=block, unit=unit), 3, 32, 32, examples=1)
    weights = [v.name for v in b.net.variables if v.name.endswith("/weights") and "shortcut" not in v.name]
    assert len(weights) == depth
    assert [v.name for v in b.net.variables if v.name.endswith("/bias")] == ["fc/bias"]


def test_bottlenecks_stride_on_their_first_convolution() -> None:
    b, _ = network(ResNetCifar(depth=11, block="bottleneck"), 3, 32, 32)
    shapes = [b.shape(b.net.layer_outputs[f"stage2_unit1_conv{i}"])[1:] for i in (1, 2, 3)]
    assert shapes == [(32, 16, 16), (32, 16, 16), (128, 16, 16)]


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

    def test_projections_are_normalized(self) -> None:
        b, _ = network(ResNetCifar(depth=20, block="bottleneck", unit="original"), 3, 8, 8)
        branch = ["conv1", "norm1", "relu1", "conv2", "norm2", "relu2", "conv3", "norm3"]
        for stage in (1, 2, 3):
            assert layers_of(b, f"stage{stage}_unit1") == [*branch, "shortcut", "shortcut_norm", "add", "relu3"]
            assert layers_of(b, f"stage{stage}_unit2") == [*branch, "add", "relu3"]
        assert summands(b, "stage1_unit1")[1] == b.net.layer_outputs["stage1_unit1_shortcut_norm"]


class TestPreactivation:
    def test_first_unit_activates_branch_and_shortcut(self) -> None:
        b, _ = network(ResNetCifar(depth=14), 3, 8, 8)
        outputs = b.net.layer_outputs
        branch = ["norm1", "relu1", "conv1", "norm2", "relu2", "conv2"]
        assert layers_of(b, "stage1_unit1") == [*branch, "add"]
        assert summands(b, "stage1_unit1") == (outputs["stage1_unit1_conv2"], outputs["stage1_unit1_relu1"])
        assert list(outputs)[-5:] == ["last_norm", "last_relu", "pool", "fc", "loss"]

    def test_shortcuts_without_weights_are_not_activated(self) -> None:
        b, _ = network(ResNetCifar(depth=14), 3, 8, 8)
        outputs = b.net.layer_outputs
        assert summands(b, "stage1_unit2")[1] == outputs["stage1_unit1_add"]
        padded = b.net.graph.nodes[outputs["stage2_unit1_shortcut"].node]
        strided = b.net.graph.nodes[padded.inputs[0].node]
        assert strided.inputs == (outputs["stage1_unit2_add"],)

    def test_projections_read_the_activated_input(self) -> None:
        b, _ = network(ResNetCifar(depth=20, block="bottleneck"), 3, 8, 8)
        outputs = b.net.layer_outputs
        branch = ["norm1", "relu1", "conv1", "norm2", "relu2", "conv2", "norm3", "relu3", "conv3"]
        for stage in (1, 2, 3):
            unit = f"stage{stage}_unit1"
            assert layers_of(b, unit) == [*branch, "shortcut", "add"]
            projection = b.net.graph.nodes[outputs[f"{unit}_shortcut"].node]
            assert projection.inputs[0] == outputs[f"{unit}_relu1"]
            assert summands(b, f"stage{stage}_unit2")[1] == outputs[f"{unit}_add"]


def test_initial_weights_keep_the_size_of_gradients() -> None:
    b, _ = network(ResNetCifar(depth=11, block="bottleneck"), 3, 8, 8)
    values = {tensor.node: value for tensor, value in initial_values(b.net).items()}
    # 64 -> 64 of 3x3 and 64 -> 256 of 1x1: 36,864 and 16,384 draws, within 2.3 % at four sigma.
    assert values["stage3_unit1_conv2/weights"].std() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.023)
    assert values["stage3_unit1_conv3/weights"].std() == pytest.approx((2 / 256) ** 0.5, rel=0.023)
    assert abs(values["fc/weights"]).max() == pytest.approx(256**-0.5, rel=0.01)
