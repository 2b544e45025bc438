"""The interface of a task, which every option of the group ``task`` implements.

A task defines the fields of an example that a network reads, the number of values that the model returns, the loss,
and the metrics with their directions. Strategies, training and commands use fields and metrics only through
:class:`Task`, so that the task of a plugin can do everything that a built-in task can.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from runner.engine.graph import Expr, NetworkBuilder, NetworkFunction, Outputs, Tensor, ops
from runner.engine.graph.network import COUNTED, LOSS
from runner.errors import ConfigError
from runner.fields import Field
from runner.models.base import Model

MIN, MAX = "min", "max"
"""Directions of a metric: whether low or high values are better."""

LABELS, NUMBERS = "labels", "numbers"
"""Kinds of targets y: (N,) int64, the class of each example; or (N, K) floats, K numbers for each example."""

TARGETS = (LABELS, NUMBERS)

RESERVED = (LOSS, "accuracy", "mask", "labels", "predictions", "learning_rate", "epoch", "examples", "seconds", COUNTED)
"""Names that no metric of a plugin can have, because steps, evaluations or runs already report them."""

OfExamples = Callable[[Expr, Expr], Expr]
"""A function of the prediction (N, outputs) and the target y that returns a value for each example, (N,).

Prediction, result and floating-point y have the dtype of the network's variables: float32, also with bfloat16."""


@dataclass(frozen=True)
class Loss:
    """A loss for one kind of target; training minimises the mean of the loss over the examples."""

    target: str
    of_examples: OfExamples


@dataclass(frozen=True)
class Metric:
    """A metric: the mean of a value of each example, or a function of such means.

    direction: :data:`MIN` or :data:`MAX`. text: the format of its value in messages, such as ".2%" for a fraction.
    target, of_examples: the kind of targets and the function of a metric in the table ``METRICS``; a task computes its
    other metrics itself. of_means: computes the metric from the means, by name, of the loss and of the values of
    ``score``; None if the metric is one of these means. trained: whether the metric is computed in training steps.
    """

    direction: str
    text: str = ".4g"
    target: str = ""
    of_examples: OfExamples | None = None
    of_means: Callable[[Mapping[str, float]], float] | None = None
    trained: bool = True

    def value(self, prediction: Expr, target: Expr) -> Tensor:
        """Return the value of each example, (N,)."""
        assert self.of_examples is not None, "a metric in the table METRICS has a function"
        return self.of_examples(prediction, target).tensor


@dataclass
class Task(ABC):
    """The base class of all tasks. The dataclass fields of a subclass are the settings of the task.

    fields: the names of the dataset's fields that the network reads. monitor: the metric by which checkpoints and runs
    are compared unless ``train.monitor`` is set. ranked: whether an answer has a score for each class, by which
    classes are ranked. ranked_by: the name of this score.
    """

    name: str = ""

    fields: ClassVar[tuple[str, ...]] = ("x", "y")
    monitor: ClassVar[str] = LOSS
    ranked: ClassVar[bool] = False
    ranked_by: ClassVar[str] = "probability"

    @property
    @abstractmethod
    def measures(self) -> Mapping[str, Metric]:
        """The metrics, besides the loss; :meth:`score` returns the metrics that are means over examples."""

    @abstractmethod
    def outputs(self, fields: Mapping[str, Field]) -> int:
        """Return the number of values that the model returns for an example.

        fields: the fields of the dataset. Raises ConfigError if the dataset does not fit the task.
        """

    @abstractmethod
    def score(self, net: NetworkBuilder, prediction: Tensor, batch: Mapping[str, Tensor]) -> Outputs:
        """Add layer "loss", of kind "loss", with the loss and the metrics of each example.

        prediction: (N, outputs), in the dtype of activations. batch: field -> (N, ...). The losses include those of
        auxiliary heads; see :func:`training_losses`.
        """

    def answers(self, prediction: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values to show to a user for predictions (N, outputs); by default, the predictions themselves."""
        return prediction

    def columns(self, fields: Mapping[str, Field]) -> tuple[str, ...]:
        """Return the names of the numbers in an answer."""
        return fields["y"].names or tuple(f"y{number}" for number in range(self.outputs(fields)))

    def expected_loss(self, fields: Mapping[str, Field]) -> float:
        """Return a loss that an untrained network can have, to detect divergence; 0 if nothing is known."""
        return 0.0

    def unit(self, fields: Mapping[str, Field]) -> tuple[str, int]:
        """Return the unit in which speed is also reported, such as "words", and the number of units in an example."""
        return "examples", 1

    @property
    def means(self) -> list[str]:
        """The names of the metrics that are means of values of examples."""
        return [name for name, metric in self.measures.items() if metric.of_means is None]

    def scores(self, means: Mapping[str, float], *, training: bool = False) -> dict[str, float]:
        """Return the loss and the metrics for the means over the examples of a step or of an evaluation."""
        shown = {name: metric for name, metric in self.measures.items() if metric.trained or not training}
        values = {name: each.of_means(means) if each.of_means else means[name] for name, each in shown.items()}
        return {LOSS: means[LOSS], **values}

    def direction(self, metric: str) -> str:
        """Return the direction of a metric of this task, or of the loss."""
        return MIN if metric == LOSS else self.measures[metric].direction

    def text(self, metric: str, value: float) -> str:
        """Return the value of a metric as messages show it."""
        return format(value, ".4g" if metric == LOSS else self.measures[metric].text)

    def network(self, model: Model, fields: Mapping[str, Field]) -> NetworkFunction:
        """Return a function that adds the model for the field x, and then the loss and the metrics."""
        outputs = self.outputs(fields)

        def add_to(net: NetworkBuilder, batch: Mapping[str, Tensor]) -> Outputs:
            scored = self.score(net, _predicted(model, net, batch["x"], outputs), batch)
            if net.auxiliary:
                fault = f"score added no loss for the auxiliary classifiers of model={model.name}"
                advice = "compute the losses with runner.tasks.base.training_losses, or set model.auxiliary_weight=0"
                raise ConfigError(f"task={self.name}: {fault}; {advice}")
            if set(scored.metrics) != set(self.means):
                found, expected = (", ".join(names) or "none" for names in (scored.metrics, self.means))
                raise ConfigError(f"task={self.name}: score returned the metrics {found}; expected {expected}")
            return scored

        return add_to

    def require_fields(self, fields: Mapping[str, Field], data: str) -> None:
        """Raise ConfigError if a dataset, named in the message, lacks a field."""
        lacking = [name for name in self.fields if name not in fields]
        if lacking:
            found = ", ".join(f"{name} {field}" for name, field in fields.items())
            fault = f"data={data} has no {', '.join(lacking)}, but {found}"
            raise ConfigError(f"task={self.name} reads {', '.join(self.fields)}; {fault}")


def _predicted(model: Model, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
    """Return a model's prediction. Raises ConfigError for a wrong shape, because a plugin may return anything."""
    returned: object = model.forward(net, x, outputs)
    if not isinstance(returned, Tensor) or net.graph.spec(returned).shape[1:] != (outputs,):
        actual = net.graph.spec(returned) if isinstance(returned, Tensor) else returned
        expected = f"(N, {outputs}), the numbers that the task reads, such as a logit for each class"
        advice = "return the output of a final dense layer"
        raise ConfigError(f"model.name={model.name}: forward returned {actual}; expected {expected}; {advice}")
    return returned


def training_losses(net: NetworkBuilder, prediction: Expr, of_prediction: Callable[[Expr], Expr]) -> Expr:
    """Return the losses (N,) of a prediction plus, in training, the weighted losses of the network's auxiliary heads.

    of_prediction: the losses of a prediction (N, outputs) in the state dtype. Szegedy et al. 2015, section 5.
    """
    losses = of_prediction(prediction)
    heads, net.auxiliary = net.auxiliary, []
    for head, weight in heads if net.training else ():
        own = Expr(net.graph, ops.as_dtype(net.graph, head, net.state_dtype))
        losses = losses + weight * of_prediction(own)
    return losses


def probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the softmax of logits (N, C) over the classes."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def require_entries(key: str, names: list[str], table: Mapping[str, Any], target: str) -> None:
    """Raise ConfigError unless ``names`` are different entries of a table, all for this kind of target.

    key: the key of the task that holds the names.
    """
    fitting = [name for name, each in table.items() if each.target == target]
    for name in names:
        if name not in fitting:
            raise ConfigError(f"task.{key}={name!r}: expected one of {', '.join(fitting)}, or a name from a --plugin")
    if len(set(names)) < len(names):
        raise ConfigError(f"task.{key}={names}: expected different names")
