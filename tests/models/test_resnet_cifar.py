import pytest

from runner.engine.graph.tensor import Tensor
from runner.models import ResNetCifar
from tests.models.support import kinds, network
from tests.nn.support import Bench, initial_values


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
