"""The vision network of DistBelief (Dean et al. 2012, section 5), with locally connected layers."""

from dataclasses import dataclass
from typing import Annotated

from runner import nn
from runner.bounds import Bounds, Count
from runner.engine.graph import NetworkBuilder, Tensor
from runner.models.base import Model


@dataclass
class DistBeliefVision(Model):
    """Three stages of filtering, pooling and local contrast normalization, and a logistic unit for each class.

    The paper states 100x100 pixels, 21,000 classes, and 8 to 36 filters in each patch of 10x10 pixels, whose weights no
    other patch shares. Two choices are not in the paper: a patch at each pixel, and 3x3 max pooling with stride 2.

    filters: filters of each patch, in all stages. patch: side of a patch. stages: number of stages.
    """

    name: str = "distbelief_vision"
    filters: Count = 8
    patch: Count = 10
    stages: Annotated[int, Bounds(1, 10)] = 3

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add layers stage1_filter, stage1_pool, stage1_norm, ... flatten and fc; return the logits."""
        for i in range(1, self.stages + 1):
            x = nn.locally_connected(net, x, self.filters, self.patch, name=f"stage{i}_filter")
            x = nn.max_pool(net, x, window=3, stride=2, name=f"stage{i}_pool")
            x = nn.local_contrast_normalization(net, x, name=f"stage{i}_norm")
        x = nn.flatten(net, x, name="flatten")
        return nn.dense(net, x, outputs, name="fc")
