"""Scaling of the learning rate and of the weight decay with the batch size (Krizhevsky 2014, section 5)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from runner.bounds import Count
from runner.errors import require, require_one_of

RATES: dict[str, Callable[[float], float]] = {"none": lambda k: 1.0, "linear": lambda k: k, "sqrt": math.sqrt}
"""Value of ``batch_scaling.rate`` -> function of k, the batch size divided by the base batch, that returns a factor."""


@dataclass
class BatchScaling:
    """The section ``batch_scaling``, which scales learning rate and decay with k = train.batch_size / base_batch.

    ``train.batch_size`` counts the examples of all workers under every strategy, including ``async_data``, where a push
    applies the gradient of one replica's share of the batch.

    rate: ``none``: the rate is ``optimizer.lr``. ``linear``: lr is multiplied by k. ``sqrt``: lr is multiplied by
    sqrt(k), which keeps the variance of an update. weight_decay: whether the decay changes so that one update shrinks
    the weights like k updates of the base batch: (1 - lr * decay) ** k = 1 - lr' * decay', where lr' and decay' are the
    scaled settings. base_batch: the batch size for which ``optimizer.lr`` and ``optimizer.weight_decay`` were chosen.
    """

    rate: str = "none"
    weight_decay: bool = False
    base_batch: Count | None = None

    def __post_init__(self) -> None:
        require_one_of("optimizer.batch_scaling.rate", self.rate, RATES)
        without = f"null with rate={self.rate} and weight_decay={str(self.weight_decay).lower()}"
        expected = "the batch for which optimizer.lr and optimizer.weight_decay are meant"
        missing = self.active and self.base_batch is None
        require(not missing, "optimizer.batch_scaling.base_batch", without, expected)

    @property
    def active(self) -> bool:
        """Whether the rate or the decay depends on the batch."""
        return self.rate != "none" or self.weight_decay

    def factor(self, batch_size: int) -> float:
        """Return the factor of the learning rate."""
        return RATES[self.rate](self._k(batch_size))

    def decay(self, lr: float, decay: float, batch_size: int) -> float:
        """Return the weight decay for a batch, given the learning rate and the decay of the base batch.

        Raises ConfigError if lr * decay is 1 or more: an update would remove a weight or change its sign.
        """
        if not self.weight_decay or lr == 0.0:
            return decay
        setting = f"true with a learning rate of {lr:g} and a weight decay of {decay:g}"
        require(lr * decay < 1.0, "optimizer.batch_scaling.weight_decay", setting, "a product below 1")
        shrunk = -math.expm1(self._k(batch_size) * math.log1p(-lr * decay))
        return shrunk / (lr * self.factor(batch_size))

    def _k(self, batch_size: int) -> float:
        return 1.0 if self.base_batch is None else batch_size / self.base_batch
