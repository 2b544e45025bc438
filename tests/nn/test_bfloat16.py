"""Layers over bfloat16 images: outputs are bfloat16, variables and scores are float32."""

from collections.abc import Callable

import numpy as np
import pytest

from runner import nn
from runner.engine.graph import ops
from runner.engine.graph.network import NetworkBuilder
from runner.engine.graph.tensor import Tensor
from tests.nn.support import Array, bench, normal

NARROW = "bfloat16"
X = normal(4, 6, 8, 8).astype(NARROW)

Layer = Callable[[NetworkBuilder, Tensor], Tensor]
LAYERS: dict[str, Layer] = {
    "conv": lambda net, x: nn.conv(net, x, 8, 3, name="l", bias=0.5),
    "conv in groups": lambda net, x: nn.conv(net, x, 8, 3, name="l", groups=2, bias=None),
    "dense": lambda net, x: nn.dense(net, nn.flatten(net, x, name="flat"), 5, name="l", bias=0.5),
    "batch_norm": lambda net, x: nn.batch_norm(net, x, name="l"),
    "max_pool": lambda net, x: nn.max_pool(net, x, 2, name="l"),
    "avg_pool": lambda net, x: nn.avg_pool(net, x, 2, name="l"),
    "global_avg_pool": lambda net, x: nn.global_avg_pool(net, x, name="l"),
    "relu": lambda net, x: nn.relu(net, x, name="l"),
    "dropout": lambda net, x: nn.dropout(net, x, 0.4, name="l"),
    "local_response_normalization": lambda net, x: nn.local_response_normalization(net, x, name="l"),
    "add": lambda net, x: nn.add(net, x, nn.relu(net, x, name="relu"), name="l"),
    "concat": lambda net, x: nn.concat(net, [x, x], name="l"),
}


def _value(layer: Layer, x: Array, training: bool) -> Array:
    b = bench(x, training=training)
    y = layer(b.net, b.x)
    assert b.net.graph.spec(y).dtype == x.dtype.name
    assert {variable.spec.dtype for variable in b.net.variables} <= {b.net.state_dtype}
    assert {b.net.graph.spec(update.batch_value).dtype for update in b.net.state_updates} <= {b.net.state_dtype}
    return b.value(y)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_layer_agrees_with_float32(layer: Layer, training: bool) -> None:
    narrow, wide = (_value(layer, X.astype(dtype), training).astype("float32") for dtype in (NARROW, "float32"))
    assert np.abs(narrow - wide).max() <= 2**-7 * np.abs(wide).max()


@pytest.mark.parametrize("loss", nn.LOSSES)
def test_classifier_scores_in_float32(loss: str) -> None:
    logits = (3 * normal(5, 4)).astype(NARROW)
    b = bench(logits)
    labels = ops.placeholder(b.net.graph, (5,), "int64", name="y")
    b.feeds[labels] = np.array([0, 3, 3, 1, 0])
    outputs = nn.classify(b.net, b.x, labels, loss)
    for tensor in (outputs.losses, outputs.logits, outputs.correct):
        assert b.net.graph.spec(tensor).dtype == "float32"
    np.testing.assert_array_equal(b.value(outputs.logits), logits.astype("float32"))
