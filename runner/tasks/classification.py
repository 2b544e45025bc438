"""Classification: the model returns a logit for each class, and the label is one class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from runner.engine.graph import ops
from runner.engine.graph.expression import Expr
from runner.engine.graph.network import NetworkBuilder, NetworkFunction, Outputs
from runner.engine.graph.tensor import Tensor
from runner.errors import ConfigError
from runner.fields import Field, labelled
from runner.models.base import Model
from runner.nn import new_layer
from runner.tasks.base import LABELS, MAX, Metric, Task, chosen
from runner.tasks.measures import LOSSES, METRICS


@dataclass
class Classification(Task):
    """Classification by logits (N, classes) of a label y, (N,) int64.

    loss: an entry of ``LOSSES`` for labels. metrics: entries of ``METRICS`` for labels, besides "accuracy", the
    fraction of examples whose largest logit is that of the label.
    """

    name: str = "classification"
    loss: str = "softmax"
    metrics: list[str] = field(default_factory=list)

    monitor: ClassVar[str] = "accuracy"
    ranked: ClassVar[bool] = True

    def __post_init__(self) -> None:
        chosen("loss", [self.loss], LOSSES, LABELS)
        chosen("metrics", self.metrics, METRICS, LABELS)

    @property
    def measures(self) -> Mapping[str, Metric]:
        """The accuracy and the further metrics."""
        return {"accuracy": Metric(MAX, ".2%"), **{name: METRICS[name] for name in self.metrics}}

    def outputs(self, fields: Mapping[str, Field]) -> int:
        """Return the number of classes."""
        if not fields["y"].is_label:
            raise ConfigError(
                f"task={self.name}: the field y of the dataset is {fields['y']}; expected a label of type int64 with "
                "the names of the classes; use task=regression for numbers"
            )
        return len(fields["y"].names)

    def score(self, net: NetworkBuilder, prediction: Tensor, batch: Mapping[str, Tensor]) -> Outputs:
        """Add the loss over the logits, and the metrics."""
        return classify(net, prediction, batch["y"], self.loss, self.metrics)

    def answers(self, prediction: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of each class; those of a softmax add up to 1, those of logistic units need not."""
        if self.loss == "logistic":
            return np.asarray(1.0 / (1.0 + np.exp(-prediction)))
        raised = np.exp(prediction - prediction.max(axis=1, keepdims=True))
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))

    def expected_loss(self, fields: Mapping[str, Field]) -> float:
        """Return the loss of uniform guessing, ln(classes)."""
        return float(np.log(self.outputs(fields)))


def classify(
    net: NetworkBuilder, logits: Tensor, labels: Tensor, loss: str = "softmax", metrics: Sequence[str] = ()
) -> Outputs:
    """Add layer "loss" over logits (N, C) and labels (N,) int64, computed in the network's state dtype.

    loss: an entry of ``LOSSES``. metrics: entries of ``METRICS``, besides "accuracy".
    """
    graph = net.graph
    with new_layer(net, "loss", "loss"):
        own, truth = Expr(graph, ops.as_dtype(graph, logits, net.state_dtype)), Expr(graph, labels)
        losses = net.output(LOSSES[loss].of_examples(own, truth).tensor)
        predictions = ops.argmax(graph, own.tensor, axis=1)
        values = {"accuracy": ops.cast(graph, ops.equal(graph, predictions, labels), net.state_dtype)}
        values |= {name: METRICS[name].value(own, truth) for name in metrics}
    return Outputs(losses, values, {"predictions": predictions, "labels": labels}, own.tensor)


def classifier(model: Model, classes: int, loss: str = "softmax") -> NetworkFunction:
    """Return the network of a model over this number of classes, without a configuration."""
    return Classification(loss=loss).network(model, labelled((), tuple(map(str, range(classes)))))
