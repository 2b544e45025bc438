"""Regression: the model returns the K numbers of the target."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.engine.graph import Expr, NetworkBuilder, Outputs, Tensor, ops
from runner.errors import ConfigError
from runner.fields import Field
from runner.nn import new_layer
from runner.tasks.base import NUMBERS, Metric, Task, require_entries, training_losses
from runner.tasks.measures import LOSSES, METRICS


@dataclass
class Regression(Task):
    """Prediction of the numbers y, (N, K) floats; a label counts as one number.

    loss: an entry of ``LOSSES`` for numbers. metrics: entries of ``METRICS`` for numbers, besides "mae".
    """

    name: str = "regression"
    loss: str = "squared"
    metrics: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        require_entries("loss", [self.loss], LOSSES, NUMBERS)
        require_entries("metrics", ["mae", *self.metrics], METRICS, NUMBERS)

    @property
    def measures(self) -> Mapping[str, Metric]:
        return {name: METRICS[name] for name in ("mae", *self.metrics)}

    def outputs(self, fields: Mapping[str, Field]) -> int:
        shape = fields["y"].shape
        if len(shape) > 1:
            raise ConfigError(f"task={self.name}: the field y of the dataset is {fields['y']}; expected (K,) numbers")
        return math.prod(shape)

    def columns(self, fields: Mapping[str, Field]) -> tuple[str, ...]:
        names = () if fields["y"].is_label else fields["y"].names
        return names or tuple(f"y{number}" for number in range(self.outputs(fields)))

    def score(self, net: NetworkBuilder, prediction: Tensor, batch: Mapping[str, Tensor]) -> Outputs:
        """Add layer "loss" over predictions (N, K) and y, (N, K) or (N,) for K = 1, computed in the state dtype."""
        graph = net.graph
        with new_layer(net, "loss", "loss"):
            own, truth = (Expr(graph, ops.as_dtype(graph, each, net.state_dtype)) for each in (prediction, batch["y"]))
            if truth.spec.rank == 1:
                truth = Expr(graph, ops.reshape(graph, truth.tensor, own.spec.shape))
            of_examples = LOSSES[self.loss].of_examples
            losses = net.output(training_losses(net, own, lambda prediction: of_examples(prediction, truth)).tensor)
            values = {name: METRICS[name].value(own, truth) for name in ("mae", *self.metrics)}
        return Outputs(losses, values, {}, own.tensor)
