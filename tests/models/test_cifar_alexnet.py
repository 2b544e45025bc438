from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.models import CifarAlexNet
from tests.models.support import assert_gradients, multiply_adds, network, parameter_count


def test_default_network_on_cifar() -> None:
    b, outputs = network(CifarAlexNet(), 3, 32, 32)
    pools = [b.shape(b.net.layer_outputs[f"pool{i}"])[1:] for i in (1, 2, 5)]
    assert pools == [(24, 16, 16), (32, 8, 8), (32, 4, 4)]
    assert b.shape(outputs.logits) == (2, 10)
    assert parameter_count(b) == 600_010
    assert multiply_adds(b) == 10_384_384


def test_convolutions_work_and_dense_layers_hold() -> None:
    b, _ = network(CifarAlexNet(), 3, 32, 32)
    dense = sum(v.spec.size for v in b.net.variables if v.name.startswith("fc"))
    assert dense / parameter_count(b) > 0.85
    assert dense / multiply_adds(b) < 0.06


def test_settings_reach_the_layers() -> None:
    b, _ = network(CifarAlexNet(filters=[2, 3, 4, 5, 6], units=7, dropout=0.125), 3, 8, 8)
    shapes = [b.shape(b.net.layer_outputs[name])[1:] for name in ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6")]
    assert [shape[0] for shape in shapes] == [2, 3, 4, 5, 6, 7]
    assert {node.attributes["rate"] for node in b.net.graph if node.op == "dropout_mask"} == {0.125}


@pytest.mark.parametrize("training", [True, False])
def test_gradients(training: bool) -> None:
    model = CifarAlexNet(filters=[2, 2, 3, 2, 3], units=4)
    assert_gradients(*network(model, 2, 5, 6, classes=3, examples=3, training=training))


def test_five_convolutions_are_needed() -> None:
    with pytest.raises(ConfigError, match=r"^model.filters=\[1, 2\]: expected 5 "):
        CifarAlexNet(filters=[1, 2])
