"""Moving averages of the trained weights, which evaluations read instead of the weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.bounds import Rate
from runner.engine.graph import Expr, apply, ops

AVERAGE = "average"
"""The slot of a trained variable with its average, such as "conv1/weights/average"."""


def average_of(name: str) -> str:
    """Return the name of the slot with the average of a variable."""
    return f"{name}/{AVERAGE}"


def with_averages(weights: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return new values of weights and of their averages, which are equal. variables: all variables of the run."""
    averages = {average_of(name): value for name, value in weights.items() if average_of(name) in variables}
    return {**weights, **averages}


@dataclass
class WeightsAverage:
    """The section ``average``: an exponential moving average a of each trained variable w.

    After each update, a <- d * a + (1 - d) * w, with the new w; a starts at the initial value of w. Evaluations, the
    best checkpoint, ``runner eval`` and ``predict``, and exports use the averages. Training uses w, and checkpoints
    hold both. The statistics of batch normalisation are moving averages already and are not averaged again.

    decay: d; None for no averages. num_updates: if true, d = min(decay, (1 + t) / (10 + t)) after update t = 1, 2, ...,
    so that the first weights are soon forgotten (``num_updates`` of TensorFlow's ExponentialMovingAverage). With
    ``async_data``, every push is an update.
    """

    decay: Rate | None = None
    num_updates: bool = True

    def share(self, step: Expr, dtype: str) -> Expr:
        """Return 1 - d as a scalar of a dtype. step: () int64, the number of the update, from 0."""
        assert self.decay is not None, "only averages that are kept have a share of the new weights"
        kept = step.scalar(self.decay, "float64")
        if self.num_updates:
            before = apply(ops.cast, step, dtype="float64")
            kept = apply(ops.minimum, kept, (before + 2.0) / (before + 11.0))
        return apply(ops.cast, 1.0 - kept, dtype=dtype)
