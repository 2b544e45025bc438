from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.models import GoogLeNet
from tests.models.support import (
    assert_trainable,
    image_sizes,
    kinds,
    multiply_adds,
    network,
    parameter_count,
)


@pytest.mark.parametrize("model", [GoogLeNet(), GoogLeNet(lrn=False, dropout=0.0)])
def test_counts_at_224x224(model: GoogLeNet) -> None:
    b, outputs = network(model, 3, 224, 224, classes=1000, examples=1)
    assert (parameter_count(b), multiply_adds(b)) == (6_998_552, 1_582_671_872)
    assert_trainable(b, outputs)


def test_sizes_at_224x224() -> None:
    b, outputs = network(GoogLeNet(), 3, 224, 224, classes=1000, examples=1)
    joined = {name: size for name, size in image_sizes(b).items() if not name.startswith("inception")}
    assert joined == {
        "conv1": (64, 112, 112),
        "pool1": (64, 56, 56),
        "conv2": (192, 56, 56),
        "pool2": (192, 28, 28),
        "pool3": (480, 14, 14),
        "pool4": (832, 7, 7),
    }
    channels = [b.shape(t)[1] for name, t in b.net.layer_outputs.items() if name.endswith("_concat")]
    assert channels == [256, 480, 512, 512, 512, 528, 832, 832, 1024]
    assert b.shape(b.net.layer_outputs["pool5"]) == (1, 1024)
    assert b.shape(outputs.logits) == (1, 1000)


def test_layers_before_the_modules_and_after_them() -> None:
    b, _ = network(GoogLeNet(), 3, 32, 32)
    layers = list(b.net.layer_outputs)
    stem = "conv1 conv1_relu pool1 norm1 conv2_reduce conv2_reduce_relu conv2 conv2_relu norm2 pool2"
    assert layers[:10] == stem.split()
    assert layers[-4:] == ["pool5", "dropout", "fc", "loss"]
    assert {node.attributes["rate"] for node in b.net.graph if node.op == "dropout_mask"} == {0.4}


def test_an_inception_module() -> None:
    b, _ = network(GoogLeNet(), 3, 64, 64)
    outputs = b.net.layer_outputs
    module = {name.removeprefix("inception_3b_"): kind for name, kind in kinds(b).items() if "_3b_" in name}
    branches = ["1x1", "3x3_reduce", "3x3", "5x5_reduce", "5x5"]
    convolved = {
        f"{branch}{part}": kind for branch in branches for part, kind in (("", "conv"), ("_relu", "activation"))
    }
    assert module == {
        **convolved,
        "pool": "pool",
        "pool_project": "conv",
        "pool_project_relu": "activation",
        "concat": "merge",
    }
    concat = b.net.graph.nodes[outputs["inception_3b_concat"].node]
    ends = [f"inception_3b_{branch}_relu" for branch in ("1x1", "3x3", "5x5", "pool_project")]
    assert concat.inputs == tuple(outputs[name] for name in ends)
    assert [b.shape(tensor)[1] for tensor in concat.inputs] == [128, 192, 96, 64]


def test_images_that_are_too_small() -> None:
    network(GoogLeNet(), 3, 31, 31)
    with pytest.raises(ConfigError, match=r"^layer 'pool4' \(pool\): .* at least 2x2, but they are 1x2 here"):
        network(GoogLeNet(), 3, 16, 31)


def test_impossible_dropout() -> None:
    with pytest.raises(ConfigError, match=r"^model.dropout=1.0: expected a number from 0 to below 1$"):
        GoogLeNet(dropout=1.0)
