"""Layers as functions that add nodes to a network's graph and stamp them with the layer's name and kind.

h = nn.relu(net, nn.conv(net, x, 32, 3, name="conv1", padding="same"), name="relu1")
"""

from runner.nn.layers import (
    add,
    avg_pool,
    batch_norm,
    concat,
    conv,
    dense,
    dropout,
    flatten,
    global_avg_pool,
    local_response_normalization,
    max_pool,
    relu,
    zero_padded_shortcut,
)
from runner.nn.loss import LOSSES, classify

__all__ = [
    "LOSSES",
    "add",
    "avg_pool",
    "batch_norm",
    "classify",
    "concat",
    "conv",
    "dense",
    "dropout",
    "flatten",
    "global_avg_pool",
    "local_response_normalization",
    "max_pool",
    "relu",
    "zero_padded_shortcut",
]
