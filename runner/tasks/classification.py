"""Classification: the model returns a logit for each class, and the label is one class."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Bounds, NonNegative, Rate
from runner.engine.graph import Expr, NetworkBuilder, NetworkFunction, Outputs, Tensor, apply, ops
from runner.engine.graph.network import COUNTED
from runner.errors import ConfigError
from runner.fields import Field, labelled
from runner.models.base import Model
from runner.nn import new_layer
from runner.tasks.base import LABELS, MAX, Metric, Task, probabilities, require_entries, training_losses
from runner.tasks.measures import LOSSES, METRICS, smoothed_softmax, weights_of


@dataclass
class Classification(Task):
    """Classification by logits (N, classes) of a label y, (N,) int64.

    loss: an entry of ``LOSSES`` for labels. metrics: entries of ``METRICS`` for labels, besides "accuracy", the
    fraction of examples in which the label has the largest logit.

    label_smoothing: s, for ``loss=softmax``. The target of the label is s / C + 1 - s, of every other class s / C.
    class_weights: a weight for each class. The loss of an example is multiplied by the weight of its label; with label
    smoothing, the term of each class is multiplied by the weight of the class. The mean divides by the number of
    examples, not by the sum of their weights, because a worker does not have the labels of other shares. PyTorch's loss
    with reduction="mean" is this loss times the number of examples, divided by the sum of the weights of their labels.
    ignored_label: a label whose examples add nothing to the loss and the metrics. In training, a mean is over all
    examples of the batch, ignored ones included; in evaluations, over the examples that are not ignored.
    """

    name: str = "classification"
    loss: str = "softmax"
    metrics: list[str] = field(default_factory=list)
    label_smoothing: Rate = 0.0
    class_weights: list[NonNegative] | None = None
    ignored_label: Annotated[int, Bounds(-(2**31), 2**31 - 1)] | None = None

    monitor: ClassVar[str] = "accuracy"
    ranked: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_entries("loss", [self.loss], LOSSES, LABELS)
        require_entries("metrics", self.metrics, METRICS, LABELS)
        if self.label_smoothing and self.loss != "softmax":
            advice = "expected 0; only task.loss=softmax has targets to smooth"
            raise ConfigError(f"task.label_smoothing={self.label_smoothing} with task.loss={self.loss}: {advice}")

    @property
    def measures(self) -> Mapping[str, Metric]:
        return {"accuracy": Metric(MAX, ".2%"), **{name: METRICS[name] for name in self.metrics}}

    def outputs(self, fields: Mapping[str, Field]) -> int:
        if not fields["y"].is_label:
            expected = "a label of type int64 with the names of the classes; use task=regression for numbers"
            raise ConfigError(f"task={self.name}: the field y of the dataset is {fields['y']}; expected {expected}")
        return len(fields["y"].names)

    def score(self, net: NetworkBuilder, prediction: Tensor, batch: Mapping[str, Tensor]) -> Outputs:
        """Add layer "loss" over logits (N, C) and labels y (N,) int64, computed in the network's state dtype."""
        graph, labels, weights, skipped = net.graph, batch["y"], self.class_weights, self.ignored_label
        classes = graph.spec(prediction).shape[1]
        if weights is not None and len(weights) != classes:
            found = len(weights)
            raise ConfigError(f"task.class_weights: found {found} weights; expected one for each class, {classes}")
        with new_layer(net, "loss", "loss"):
            own, given = Expr(graph, ops.as_dtype(graph, prediction, net.state_dtype)), Expr(graph, labels)
            ignored = None if skipped is None else apply(ops.equal, given, given.scalar(skipped))
            # An ignored label need not be a valid class, so a valid label replaces it.
            truth = given if ignored is None else apply(ops.select, ignored, given.scalar(0), given)

            def of_prediction(prediction: Expr) -> Expr:
                if self.label_smoothing:
                    return smoothed_softmax(prediction, truth, self.label_smoothing, weights)
                found = LOSSES[self.loss].of_examples(prediction, truth)
                return found if weights is None else found * weights_of(truth, prediction, weights)

            losses = training_losses(net, own, of_prediction)
            predictions = ops.argmax(graph, own.tensor, axis=1)
            values = {"accuracy": ops.cast(graph, ops.equal(graph, predictions, labels), net.state_dtype)}
            values |= {name: METRICS[name].value(own, truth) for name in self.metrics}
            collected = {"predictions": predictions, "labels": labels}
            if ignored is not None:
                zero, one = own.scalar(0.0), own.scalar(1.0)
                losses = apply(ops.select, ignored, zero, losses)
                values = {name: ops.select(graph, ignored.tensor, zero.tensor, each) for name, each in values.items()}
                collected[COUNTED] = ops.select(graph, ignored.tensor, zero.tensor, one.tensor)
            net.output(losses.tensor)
        return Outputs(losses.tensor, values, collected, own.tensor)

    def answers(self, prediction: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of each class. The probabilities add up to 1 for a softmax, not for logistic units."""
        if self.loss == "logistic":
            return np.asarray(1.0 / (1.0 + np.exp(-prediction)))
        return probabilities(prediction)

    def expected_loss(self, fields: Mapping[str, Field]) -> float:
        """Return the loss of uniform guessing, ln(classes), times the largest weight of a class."""
        return float(np.log(self.outputs(fields))) * max(self.class_weights or [1.0])


def classifier(model: Model, classes: int) -> NetworkFunction:
    """Return the network of a model over this number of classes, without a configuration."""
    return Classification().network(model, labelled((), tuple(map(str, range(classes)))))
