"""Properties of individual models: the tensors that layers read, normalization and initial values."""

import pytest

from runner.models import AlexNet, CifarAlexNet, GoogLeNet, ResNetCifar
from runner.models.residual import UNITS
from tests.nn.support import Bench, initial_values, kinds, network


def test_alexnet_normalizes_as_cuda_convnet_by_default() -> None:
    def attributes(**settings: float) -> list[dict[str, object]]:
        b, _ = network(AlexNet(conv4=3, units=5, **settings), 3, 64, 64)  # type: ignore[arg-type]
        return [dict(node.attributes) for node in b.net.graph if node.op == "local_response_normalization"]

    released = {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0, "divide_by_size": True}
    assert attributes() == [released, released]
    changed = {**released, "alpha": 0.5, "divide_by_size": False}
    assert attributes(lrn_alpha=0.5, lrn_divide_by_size=False) == [changed, changed]


def test_alexnet_has_the_initial_values_of_cuda_convnet() -> None:
    b, _ = network(AlexNet(units=64), 3, 64, 64)
    values = {tensor.node: value for tensor, value in initial_values(b.net).items()}
    biases = {name.split("/")[0]: set(value.tolist()) for name, value in values.items() if name.endswith("/bias")}
    ones = {name: {1.0} for name in ("conv2", "conv4", "conv5", "fc6", "fc7")}
    assert biases == {"conv1": {0.0}, "conv3": {0.0}, "fc8": {-7.0}, **ones}
    for name, stddev in {"conv1": 0.01, "conv2": 0.01, "conv3": 0.03, "conv5": 0.03, "fc6": 0.01}.items():
        # With at least 16,384 draws, four standard errors of the sample deviation are below 2.3 %.
        assert values[f"{name}/weights"].std() == pytest.approx(stddev, rel=0.023)


def test_cifar_alexnet_has_the_widths_of_its_settings() -> None:
    b, _ = network(CifarAlexNet(filters=[2, 3, 4, 5, 6], units=7), 3, 8, 8)
    names = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6")
    assert [b.shape(b.net.layer_outputs[name])[1] for name in names] == [2, 3, 4, 5, 6, 7]


def test_googlenet_has_the_expected_layers_around_its_modules() -> None:
    b, _ = network(GoogLeNet(), 3, 32, 32)
    layers = list(b.net.layer_outputs)
    stem = "conv1 conv1_relu pool1 norm1 conv2_reduce conv2_reduce_relu conv2 conv2_relu norm2 pool2"
    assert layers[:10] == stem.split()
    assert layers[-4:] == ["pool5", "dropout", "fc", "loss"]


def test_an_inception_module_concatenates_four_branches() -> None:
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


ORDERS = {
    ("single", "original"): "conv1 norm1 add relu1",
    ("basic", "original"): "conv1 norm1 relu1 conv2 norm2 add relu2",
    ("bottleneck", "original"): "conv1 norm1 relu1 conv2 norm2 relu2 conv3 norm3 add relu3",
    ("single", "bn_after_addition"): "conv1 add norm1 relu1",
    ("basic", "bn_after_addition"): "conv1 norm1 relu1 conv2 add norm2 relu2",
    ("bottleneck", "bn_after_addition"): "conv1 norm1 relu1 conv2 norm2 relu2 conv3 add norm3 relu3",
    ("basic", "relu_before_addition"): "conv1 norm1 relu1 conv2 norm2 relu2 add",
    ("bottleneck", "relu_before_addition"): "conv1 norm1 relu1 conv2 norm2 relu2 conv3 norm3 relu3 add",
    ("basic", "relu_only_preactivation"): "relu1 conv1 norm1 relu2 conv2 norm2 add",
    ("bottleneck", "relu_only_preactivation"): "relu1 conv1 norm1 relu2 conv2 norm2 relu3 conv3 norm3 add",
    ("single", "preactivation"): "norm1 relu1 conv1 add",
    ("basic", "preactivation"): "norm1 relu1 conv1 norm2 relu2 conv2 add",
    ("bottleneck", "preactivation"): "norm1 relu1 conv1 norm2 relu2 conv2 norm3 relu3 conv3 add",
}


@pytest.mark.parametrize(
    ("block", "unit", "name", "shortcut", "source"),
    [
        ("basic", "original", "stage1_unit1", "", "relu1"),
        ("basic", "original", "stage2_unit1", "shortcut", "stage1_unit2_relu2"),
        ("basic", "original", "stage2_unit2", "", "stage2_unit1_relu2"),
        *(("bottleneck", "original", f"stage{i}_unit2", "", f"stage{i}_unit1_relu3") for i in (1, 2, 3)),
        ("bottleneck", "original", "stage1_unit1", "shortcut shortcut_norm", "relu1"),
        ("bottleneck", "original", "stage2_unit1", "shortcut shortcut_norm", "stage1_unit2_relu3"),
        # The first unit's shortcut reads the activated input, as its branch does; later shortcuts without weights
        # read the unit's input.
        ("basic", "preactivation", "stage1_unit1", "", "stage1_unit1_relu1"),
        ("basic", "preactivation", "stage1_unit2", "", "stage1_unit1_add"),
        ("basic", "preactivation", "stage2_unit1", "shortcut", "stage1_unit2_add"),
        # Projections, the shortcuts with weights, read the activated input.
        *(("bottleneck", "preactivation", f"stage{i}_unit1", "shortcut", f"stage{i}_unit1_relu1") for i in (1, 2, 3)),
        *(("bottleneck", "preactivation", f"stage{i}_unit2", "", f"stage{i}_unit1_add") for i in (1, 2, 3)),
        ("single", "original", "stage2_unit2", "", "stage2_unit1_relu1"),
        ("single", "preactivation", "stage1_unit1", "", "stage1_unit1_relu1"),
        ("single", "preactivation", "stage2_unit2", "", "stage2_unit1_add"),
        ("single", "bn_after_addition", "stage1_unit1", "", "relu1"),
        ("basic", "bn_after_addition", "stage2_unit1", "shortcut", "stage1_unit2_relu2"),
        ("bottleneck", "bn_after_addition", "stage2_unit1", "shortcut", "stage1_unit2_relu3"),
        ("basic", "relu_before_addition", "stage2_unit1", "shortcut", "stage1_unit2_add"),
        ("bottleneck", "relu_before_addition", "stage2_unit1", "shortcut shortcut_norm", "stage1_unit2_add"),
        ("basic", "relu_only_preactivation", "stage1_unit1", "", "stage1_unit1_relu1"),
        ("basic", "relu_only_preactivation", "stage2_unit1", "shortcut", "stage1_unit2_add"),
        ("bottleneck", "relu_only_preactivation", "stage2_unit1", "shortcut shortcut_norm", "stage2_unit1_relu1"),
    ],
)
def test_a_unit_adds_its_branch_and_its_shortcut(block: str, unit: str, name: str, shortcut: str, source: str) -> None:
    depth = {"single": 8, "basic": 14, "bottleneck": 20}[block]
    b, _ = network(ResNetCifar(depth=depth, block=block, unit=unit), 3, 8, 8)
    outputs, nodes = b.net.layer_outputs, b.net.graph.nodes
    branch, after = (part.split() for part in ORDERS[block, unit].split("add"))
    assert layers_of(b, name) == [*branch, *shortcut.split(), "add", *after]
    ends = outputs[f"{name}_{branch[-1]}"], outputs[f"{name}_{shortcut.split()[-1]}" if shortcut else source]
    assert nodes[outputs[f"{name}_add"].node].inputs == ends
    if shortcut:
        first = nodes[outputs[f"{name}_shortcut"].node]
        strided = first if block == "bottleneck" or name == "stage1_unit1" else nodes[first.inputs[0].node]
        assert strided.inputs[0] == outputs[source]


def test_residual_networks_have_the_expected_first_and_last_layers() -> None:
    ends = {
        "original": ("conv1 norm1 relu1", "stage3_unit2_relu2"),
        "bn_after_addition": ("conv1 norm1 relu1", "stage3_unit2_relu2"),
        "relu_before_addition": ("conv1 norm1 relu1", "stage3_unit2_add"),
        "relu_only_preactivation": ("conv1 norm1", "stage3_unit2_add last_relu"),
        "preactivation": ("conv1", "stage3_unit2_add last_norm last_relu"),
    }
    for unit in UNITS:
        b, _ = network(ResNetCifar(depth=14, unit=unit), 3, 8, 8)
        layers = " ".join(b.net.layer_outputs)
        first, last = ends[unit]
        assert layers.startswith(f"{first} stage1_unit1_")
        assert layers.endswith(f" {last} pool fc loss")


def test_initial_weights_keep_the_size_of_gradients() -> None:
    b, _ = network(ResNetCifar(depth=11, block="bottleneck"), 3, 8, 8)
    values = {tensor.node: value for tensor, value in initial_values(b.net).items()}
    # conv2 (3x3, 64 -> 64) has 36,864 draws, conv3 (1x1, 64 -> 256) has 16,384; four standard errors are below 2.3 %.
    assert values["stage3_unit1_conv2/weights"].std() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.023)
    assert values["stage3_unit1_conv3/weights"].std() == pytest.approx((2 / 256) ** 0.5, rel=0.023)
    assert abs(values["fc/weights"]).max() == pytest.approx(256**-0.5, rel=0.01)


SUMS = {
    "identity": "add",
    "constant": "shortcut_scaled branch_scaled add",
    "exclusive_gating": "gate gate_sigmoid gate_rest shortcut_scaled branch_scaled add",
    "shortcut_only_gating": "gate gate_sigmoid gate_rest shortcut_scaled add",
    "conv1x1": "shortcut shortcut_norm add",
    "dropout": "shortcut_dropout add",
}


@pytest.mark.parametrize("shortcut", SUMS)
def test_each_shortcut_adds_its_layers_to_every_unit(shortcut: str) -> None:
    b, _ = network(ResNetCifar(depth=14, unit="original", shortcut=shortcut), 3, 8, 8)
    for number in (1, 2):
        padded = ["shortcut"] if number == 1 and shortcut != "conv1x1" else []
        branch = ["conv1", "norm1", "relu1", "conv2", "norm2"]
        assert layers_of(b, f"stage3_unit{number}") == [*branch, *padded, *SUMS[shortcut].split(), "relu2"]


def test_gates_begin_with_the_bias_of_the_setting() -> None:
    b, _ = network(ResNetCifar(depth=8, unit="original", shortcut="exclusive_gating", gate_bias=-3.0), 3, 8, 8)
    biases = {tensor.node: value for tensor, value in initial_values(b.net).items() if "_gate/bias" in tensor.node}
    assert [set(value.tolist()) for value in biases.values()] == [{-3.0}] * 3


def test_a_constant_factor_of_one_adds_no_layer() -> None:
    model = ResNetCifar(depth=8, unit="original", shortcut="constant", shortcut_scale=0.0, branch_scale=1.0)
    b, _ = network(model, 3, 8, 8)
    added = layers_of(b, "stage1_unit1")
    assert "shortcut_scaled" in added
    assert "branch_scaled" not in added
