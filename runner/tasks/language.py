"""Language modelling: the model computes a state for each word of a text, and a softmax predicts the next word."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Count
from runner.engine.graph import Constant, Expr, NetworkBuilder, NetworkFunction, Outputs, Tensor, Uniform, apply, ops
from runner.engine.graph.network import COUNTED, LOSS
from runner.errors import ConfigError, require_one_of
from runner.fields import BEGINS, LABEL, Field
from runner.models.base import Model, SequenceModel
from runner.nn import new_layer
from runner.tasks.base import MIN, Metric, Task, probabilities

LOSSES = ("softmax", "sampled_softmax")
_DIGITS = 24
"""Number of binary digits of the uniform numbers from which words are drawn: the precision of float32."""


@dataclass
class Language(Task):
    """Prediction of the next word y (N, T) at each word of x (N, T), both int64; negative words y do not count.

    The layer "softmax" has the variables table (V, features) and bias (V,); the logit of word v at state h is
    table[v] h + bias[v]. In an evaluation, the loss of an example is the mean cross-entropy, in nats, of the words that
    count; in training, the sum of these terms divided by T. The perplexity is e to the mean loss of all words.

    loss: ``softmax`` trains with all words. ``sampled_softmax`` trains with the next word and ``samples`` words that
    are drawn in each step for the whole batch (Jean et al. 2015; ``tf.nn.sampled_softmax_loss``). Word v, counted from
    0 by falling frequency, is drawn with probability log((v + 2) / (v + 1)) / log(V + 1), with replacement. The
    logarithm of the expected number of draws is subtracted from a word's logit. Drawn words equal to the next word are
    left out. Evaluations always use all words. Training with sampled words reports no perplexity.
    """

    name: str = "language"
    loss: str = "softmax"
    samples: Count = 512

    fields: ClassVar[tuple[str, ...]] = ("x", "y", BEGINS)
    monitor: ClassVar[str] = "perplexity"
    ranked: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_one_of("task.loss", self.loss, LOSSES)

    @property
    def measures(self) -> Mapping[str, Metric]:
        return {"perplexity": Metric(MIN, of_means=lambda means: _exp(means[LOSS]), trained=self.loss == "softmax")}

    def outputs(self, fields: Mapping[str, Field]) -> int:
        x, y = fields["x"], fields["y"]
        if not (x.dtype == y.dtype == LABEL and len(x.shape) == 1 and x.shape == y.shape and y.names):
            fault = f"the fields x and y of the dataset are {x} and {y}"
            expected = "the ids of T words each, int64[T], with the names of the words"
            raise ConfigError(f"task={self.name}: {fault}; expected {expected}; use data=shakespeare, text or lm1b")
        return len(y.names)

    def unit(self, fields: Mapping[str, Field]) -> tuple[str, int]:
        """Return "words" and the number of words of an example."""
        return "words", fields["x"].shape[0]

    def network(self, model: Model, fields: Mapping[str, Field]) -> NetworkFunction:
        """Return a function that adds the model, the output layer, the loss and the prediction of the last word."""
        words = self.outputs(fields)
        if not isinstance(model, SequenceModel):
            expected = "a model of sequences; use model=lstm"
            raise ConfigError(f"task={self.name} with model={model.name}: expected {expected}")

        def add_to(net: NetworkBuilder, batch: Mapping[str, Tensor]) -> Outputs:
            parts = model.states(net, batch["x"], words)
            with new_layer(net, "softmax", "dense"):
                layer = _Softmax(net, parts, words)
            return self._scored(net, layer, batch["y"])

        return add_to

    def score(self, net: NetworkBuilder, prediction: Tensor, batch: Mapping[str, Tensor]) -> Outputs:
        """Raise ConfigError: the output layer is a part of this task, so :meth:`network` adds all layers."""
        raise ConfigError(f"task={self.name} has no score() of a prediction (N, outputs); call network() instead")

    def answers(self, prediction: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability that each word follows the last word of an example."""
        return probabilities(prediction)

    def expected_loss(self, fields: Mapping[str, Field]) -> float:
        """Return the loss of uniform guessing, ln(words)."""
        return math.log(self.outputs(fields))

    def _scored(self, net: NetworkBuilder, layer: "_Softmax", y: Tensor) -> Outputs:
        graph = net.graph
        sampled = net.training and self.loss == "sampled_softmax"
        rows, steps = graph.spec(y).shape
        with new_layer(net, "loss", "loss"):
            given = Expr(graph, ops.reshape(graph, ops.transpose(graph, y, (1, 0)), (steps * rows,)))
            ignored = apply(ops.less, given, given.scalar(0))
            truth = apply(ops.select, ignored, given.scalar(0), given)
        with net.layer("softmax", "dense"):
            logits = layer.sampled(truth, self.samples) if sampled else layer.logits()
            # The last rows of the logits belong to the last words of all examples. An evaluation computes these rows
            # again, so that a prediction without a loss needs no other rows.
            if net.training:
                begin, columns = (steps - 1) * rows, logits.spec.shape[1]
                last = Expr(graph, ops.slice(graph, logits.tensor, (begin, 0), (rows, columns)))
            else:
                last = layer.last()
        with net.layer("loss", "loss"):
            labels = ops.fill(graph, 0.0, (steps * rows,), LABEL) if sampled else truth.tensor
            losses = Expr(graph, ops.softmax_cross_entropy(graph, logits.tensor, labels)[0])
            losses = apply(ops.select, ignored, losses.scalar(0.0), losses)
            total = apply(ops.reduce_sum, apply(ops.reshape, losses, shape=(steps, rows)), axes=(0,))
            if net.training:
                return Outputs(net.output((total * (1.0 / steps)).tensor), {}, {}, last.tensor)
            counted = apply(ops.select, ignored, losses.scalar(0.0), losses.scalar(1.0))
            count = apply(ops.reduce_sum, apply(ops.reshape, counted, shape=(steps, rows)), axes=(0,))
            mean = total / apply(ops.maximum, count, count.scalar(1.0))
            # A row with fewer words has a smaller weight, so that the mean of all rows is the mean of all words.
            share = {COUNTED: (count * (1.0 / steps)).tensor}
            return Outputs(net.output(mean.tensor), {}, share, last.tensor)


class _Softmax:
    """The output layer over states in parts (T, N, features); V: the number of words."""

    def __init__(self, net: NetworkBuilder, parts: list[Tensor], words: int) -> None:
        graph, features = net.graph, net.graph.spec(parts[0]).shape[2]
        self._net = net
        self._words = words
        scale = features**-0.5
        self._table = net.parameter("table", (words, features), Uniform(-scale, scale), decayed=True)
        self._bias = net.parameter("bias", (words,), Constant(0.0))
        whole = parts[0] if len(parts) == 1 else ops.concat(graph, parts, 0)
        steps, rows, _ = graph.spec(whole).shape
        last = ops.slice(graph, whole, (steps - 1, 0, 0), (1, rows, features))
        self._last = ops.reshape(graph, last, (rows, features))
        self._states = ops.reshape(graph, whole, (steps * rows, features))

    def logits(self) -> Expr:
        """Add the logits (T N, V) of all words, in the network's state dtype."""
        logits = self._net.output(self._logits_of(self._states))
        return Expr(self._net.graph, logits)

    def last(self) -> Expr:
        """Add the logits (N, V) after the last step."""
        return Expr(self._net.graph, self._logits_of(self._last))

    def sampled(self, truth: Expr, samples: int) -> Expr:
        """Add the logits (T N, 1 + samples) of the next word and of drawn words; see :class:`Language`."""
        graph, net = self._net.graph, self._net
        drawn = self._drawn(samples)
        states = Expr(graph, ops.as_dtype(graph, self._states, net.state_dtype))
        own = apply(ops.reduce_sum, states * self._rows_of(truth), axes=(1,)) + self._biases_of(truth)
        own = own - self._expected(truth, samples)
        table = ops.as_dtype(graph, self._rows_of(drawn).tensor, net.dtype)
        products = ops.as_dtype(graph, ops.matmul(graph, self._states, table, transpose_b=True), net.state_dtype)
        others = Expr(graph, products) + (self._biases_of(drawn) - self._expected(drawn, samples))
        column = apply(ops.reshape, truth, shape=(-1, 1))
        hits = apply(ops.equal, column, apply(ops.reshape, drawn, shape=(1, -1)))
        others = apply(ops.select, hits, others.scalar(-1e30), others)
        joined = ops.concat(graph, [apply(ops.reshape, own, shape=(-1, 1)).tensor, others.tensor], 1)
        return Expr(graph, net.output(joined))

    def _logits_of(self, states: Tensor) -> Tensor:
        graph, dtype = self._net.graph, self._net.dtype
        table, bias = (ops.as_dtype(graph, each, dtype) for each in (self._table.tensor, self._bias.tensor))
        logits = ops.add(graph, ops.matmul(graph, states, table, transpose_b=True), bias)
        return ops.as_dtype(graph, logits, self._net.state_dtype)

    def _rows_of(self, numbers: Expr) -> Expr:
        return Expr(numbers.graph, self._net.lookup(self._table, numbers.tensor))

    def _biases_of(self, numbers: Expr) -> Expr:
        return Expr(numbers.graph, self._net.lookup(self._bias, numbers.tensor))

    def _drawn(self, samples: int) -> Expr:
        """Add the numbers of the drawn words, (samples,) int64: a function of seed, layer and step."""
        graph, net = self._net.graph, self._net
        # A dropout mask at rate 1/2 has elements 0 or 2 at random, equal on every device; each row gives one draw.
        digits = ops.dropout_mask(
            graph,
            net.step,
            ops.constant(graph, np.arange(samples, dtype=np.int64)),
            shape=(samples, _DIGITS),
            dtype=net.state_dtype,
            rate=0.5,
            seed=net.seed,
            key=f"{net.stamp.name}/samples",
        )
        values = ops.constant(graph, (0.5 ** np.arange(2, _DIGITS + 2)).astype(net.state_dtype))
        uniform = Expr(graph, ops.reduce_sum(graph, ops.mul(graph, digits, values), axes=(1,)))
        word = (uniform * math.log(self._words + 1)).exp() - 1.0
        word = apply(ops.minimum, word, word.scalar(self._words - 1))
        return apply(ops.cast, word, dtype=LABEL)

    def _expected(self, numbers: Expr, samples: int) -> Expr:
        """Add the logarithm of the expected number of draws of each word."""
        place = apply(ops.cast, numbers, dtype=self._net.state_dtype) + 1.0
        probability = apply(ops.log1p, 1.0 / place) * (samples / math.log(self._words + 1))
        return apply(ops.log, probability)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
