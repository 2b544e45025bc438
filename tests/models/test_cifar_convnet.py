from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.models import CifarConvNet
from tests.models.support import assert_gradients, network, parameter_count


def test_default_network_on_cifar() -> None:
    b, outputs = network(CifarConvNet(), 3, 32, 32)
    pools = [b.shape(b.net.layer_outputs[f"stage{i}_pool"])[1:] for i in (1, 2, 3)]
    assert pools == [(32, 16, 16), (64, 8, 8), (128, 4, 4)]
    assert b.shape(outputs.logits) == (2, 10)
    assert parameter_count(b) == 551_146
    assert len(b.net.state_updates) == 2 * 7


def test_a_stage() -> None:
    b, _ = network(CifarConvNet(widths=[4], units=5), 3, 6, 5)
    kinds = ["conv", "norm", "relu"]
    stage = [f"stage1_{kind}{j}" for j in (1, 2) for kind in kinds] + ["stage1_pool", "stage1_dropout"]
    head = ["flatten", "fc1", "fc1_norm", "fc1_relu", "fc1_dropout", "fc2", "loss"]
    assert list(b.net.layer_outputs) == stage + head


def test_settings_reach_the_layers() -> None:
    b, _ = network(CifarConvNet(widths=[4], units=5, dropout=0.125, norm_decay=0.75), 3, 4, 4)
    assert {node.attributes["rate"] for node in b.net.graph if node.op == "dropout_mask"} == {0.125}
    assert {update.decay for update in b.net.state_updates} == {0.75}


def test_normalised_layers_have_no_bias() -> None:
    b, _ = network(CifarConvNet(), 3, 32, 32)
    assert [v.name for v in b.net.variables if v.name.endswith("/bias")] == ["fc2/bias"]


def test_evaluation_neither_drops_nor_advances() -> None:
    b, _ = network(CifarConvNet(widths=[4], units=5), 3, 4, 4, training=False)
    assert not b.net.state_updates
    assert not [node for node in b.net.graph if node.op in ("dropout_mask", "batch_norm")]


def test_images_that_are_too_small() -> None:
    with pytest.raises(ConfigError, match=r"layer 'stage3_pool' \(pool\): .* at least 2x2, but they are 1x1 here"):
        network(CifarConvNet(), 3, 7, 7)


@pytest.mark.parametrize("training", [True, False])
def test_gradients(training: bool) -> None:
    model = CifarConvNet(widths=[3, 4], units=5)
    assert_gradients(*network(model, 2, 5, 6, classes=3, examples=6, training=training))


@pytest.mark.parametrize("key", ["dropout", "norm_decay"])
@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_impossible_rates(key: str, rate: float) -> None:
    with pytest.raises(ConfigError, match=rf"^model.{key}={rate}: expected a number from 0 to below 1$"):
        CifarConvNet(**{key: rate})  # type: ignore[arg-type]
