from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.models import VggA
from tests.models.support import (
    assert_gradients,
    assert_trainable,
    image_sizes,
    multiply_adds,
    network,
    parameter_count,
)

SMALL = VggA(widths=[2, 3, 2, 3, 4], units=5)


def test_sizes_at_224x224() -> None:
    b, outputs = network(VggA(), 3, 224, 224, classes=1000, examples=1)
    assert image_sizes(b) == {
        "stage1_conv1": (64, 224, 224),
        "stage1_pool": (64, 112, 112),
        "stage2_conv1": (128, 112, 112),
        "stage2_pool": (128, 56, 56),
        "stage3_conv1": (256, 56, 56),
        "stage3_pool": (256, 28, 28),
        "stage4_conv1": (512, 28, 28),
        "stage4_pool": (512, 14, 14),
        "stage5_pool": (512, 7, 7),
    }
    assert (parameter_count(b), multiply_adds(b)) == (132_863_336, 7_609_090_048)
    assert_trainable(b, outputs)


def test_layers_of_the_last_stage_and_the_head() -> None:
    b, _ = network(SMALL, 3, 32, 32)
    stage = [f"stage5_{layer}" for layer in ("conv1", "relu1", "conv2", "relu2", "pool")]
    hidden = [f"fc{i}{part}" for i in (1, 2) for part in ("", "_relu", "_dropout")]
    assert list(b.net.layer_outputs)[-14:] == [*stage, "flatten", *hidden, "fc3", "loss"]
    assert {node.attributes["rate"] for node in b.net.graph if node.op == "dropout_mask"} == {0.5}


def test_gradients() -> None:
    assert_gradients(*network(SMALL, 3, 32, 35, classes=3, examples=3))


def test_images_that_are_too_small() -> None:
    with pytest.raises(ConfigError, match=r"^layer 'stage5_pool' \(pool\): .* at least 2x2, but they are 1x2 here"):
        network(SMALL, 3, 31, 32)


def test_other_numbers_of_stages() -> None:
    with pytest.raises(ConfigError, match=r"^model.widths=\[64, 128\]: expected 5 whole numbers above 0$"):
        VggA(widths=[64, 128])


def test_no_units() -> None:
    with pytest.raises(ConfigError, match=r"^model.units=0: expected a whole number above 0$"):
        VggA(units=0)


def test_impossible_dropout() -> None:
    with pytest.raises(ConfigError, match=r"^model.dropout=1.0: expected a number from 0 to below 1$"):
        VggA(dropout=1.0)
