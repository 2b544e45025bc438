"""Layers as functions that add nodes to a network's graph and stamp them with the layer's name and kind.

h = nn.relu(net, nn.conv(net, x, 32, 3, name="conv1", padding="same"), name="relu1")
"""

from runner.nn.layers import (
    avg_pool,
    batch_norm,
    conv,
    dense,
    dropout,
    flatten,
    global_avg_pool,
    local_response_normalization,
    max_pool,
    relu,
)
from runner.nn.loss import LOSSES, classify

__all__ = [
    "LOSSES",
    "avg_pool",
    "batch_norm",
    "classify",
    "conv",
    "dense",
    "dropout",
    "flatten",
    "global_avg_pool",
    "local_response_normalization",
    "max_pool",
    "relu",
]
