"""Layers that join branches of a network: sums, concatenations, and the shortcut without weights."""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.graph import ops
from runner.engine.graph.network import NetworkBuilder
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor
from runner.nn.layers import new_layer


def add(net: NetworkBuilder, x: Tensor, shortcut: Tensor, *, name: str) -> Tensor:
    """Add x + shortcut, both of one shape: the end of a residual unit (He et al. 2016, eq. 1)."""
    with new_layer(net, name, "merge"):
        left, right = net.graph.spec(x), net.graph.spec(shortcut)
        if left != right:
            raise ShapeError(f"layer {name!r} (merge): expected two inputs of one shape, came {left} and {right}")
        return net.output(ops.add(net.graph, x, shortcut))


def concat(net: NetworkBuilder, branches: Sequence[Tensor], *, name: str) -> Tensor:
    """Add the channels of all branches (N, C_i, H, W) one after the other: (N, sum of C_i, H, W)."""
    with new_layer(net, name, "merge"):
        return net.output(ops.concat(net.graph, branches, axis=1))


def zero_padded_shortcut(net: NetworkBuilder, x: Tensor, channels: int, *, name: str, stride: int = 1) -> Tensor:
    """Add every stride-th pixel of x (N, C, H, W), padded by channels of zeros: (N, channels, H', W').

    H' = (H - 1) // stride + 1, likewise W', as for a convolution padded to keep the size. He et al. 2015, "Deep
    residual learning", section 3.3, option A.
    """
    with new_layer(net, name, "shape"):
        y = x
        if stride > 1:
            # Means over single pixels take every stride-th pixel.
            y = ops.avg_pool(net.graph, x, window=(1, 1), strides=(stride, stride))
        lacking = channels - net.graph.spec(x).shape[1]
        return net.output(ops.pad(net.graph, y, low=(0, 0, 0, 0), high=(0, lacking, 0, 0)))
