"""Word embeddings: vectors of words that predict the words around them, by skip-gram with negative sampling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from runner.bounds import NonNegative, SmallCount
from runner.engine.graph import Constant, Expr, Graph, NetworkBuilder, NetworkFunction, Outputs, Tensor, apply, ops
from runner.errors import ConfigError
from runner.fields import LABEL, Field
from runner.models.base import Model
from runner.models.skip_gram import SkipGram
from runner.nn import new_layer
from runner.tasks.base import Metric, Task

Span = tuple[int, int]
"""The positions begin..end-1 of an example."""

_DRAWS = "float64"
"""The dtype of uniform draws: in float32, a draw below 1 may be rounded to 1."""


@dataclass
class Embeddings(Task):
    """Skip-gram with negative sampling (Mikolov et al. 2013, equation 4) over the words x (N, T) of a text.

    Two words of an example that are at most ``window`` words apart form two pairs: each word is the centre of one pair
    and the context of the other. ``negatives`` words are drawn for each pair. The loss of a pair, with vectors v of
    centres and vectors u of the table of contexts, is -log s(u_context v) - sum of log s(-u_drawn v), with the logistic
    function s. The loss of an example is the mean over its pairs, so that gradients do not grow with T; pairs with
    padding do not count. Unlike in word2vec, the window size is fixed and frequent words are not subsampled.

    power: the probability of drawing a word is proportional to count ** power, with counts of the training split. Draws
    depend on the run's seed, the step and the example; in evaluations, on the seed and the example. Drawn words
    that equal the context do not count, as in word2vec.

    The prediction for an example is the cosine similarity of its last word to all words, with -1 for the word itself,
    so that the largest numbers belong to the nearest neighbours.
    """

    name: str = "embeddings"
    window: SmallCount = 5
    negatives: SmallCount = 5
    power: NonNegative = 0.75

    ranked: ClassVar[bool] = True
    ranked_by: ClassVar[str] = "similarity"

    @property
    def measures(self) -> Mapping[str, Metric]:
        return {}

    def outputs(self, fields: Mapping[str, Field]) -> int:
        x = fields["x"]
        if x.dtype != LABEL or len(x.shape) != 1 or not x.names or x.shape[0] < 2:
            expected = "the ids of T words, int64[T] with T of 2 or more, and the names of the words"
            advice = "use data=shakespeare, text or lm1b"
            raise ConfigError(f"task={self.name}: the field x of the dataset is {x}; expected {expected}; {advice}")
        return len(x.names)

    def columns(self, fields: Mapping[str, Field]) -> tuple[str, ...]:
        return fields["x"].names

    def expected_loss(self, fields: Mapping[str, Field]) -> float:
        """Return the largest loss if all context vectors are 0: log 2 for the context and for each drawn word."""
        return float(np.log(2.0)) * (1 + self.negatives)

    def network(self, model: Model, fields: Mapping[str, Field]) -> NetworkFunction:
        """Return a function that adds both tables, the loss and, in evaluations, the similarity to all words."""
        words = self.outputs(fields)
        if not isinstance(model, SkipGram):
            expected = "vectors of words; use model=skip_gram"
            raise ConfigError(f"task={self.name} with model={model.name}: expected {expected}")
        # Without the counts of a text, plan the network with weights of Zipf's law, because words are sorted by
        # frequency.
        counts = fields["x"].counts or 1.0 / np.arange(1, words + 1)
        noise = _Noise.of(np.array(counts, np.float64) ** self.power)
        return lambda net, batch: self._scored(net, model, words, noise, batch)

    def score(self, net: NetworkBuilder, prediction: Tensor, batch: Mapping[str, Tensor]) -> Outputs:
        """Raise ConfigError: the loss needs both tables, so :meth:`network` adds all layers."""
        raise ConfigError(f"task={self.name} has no score() of a prediction (N, outputs); call network() instead")

    def _scored(
        self, net: NetworkBuilder, model: SkipGram, words: int, noise: "_Noise", batch: Mapping[str, Tensor]
    ) -> Outputs:
        graph, x = net.graph, batch["x"]
        rows, steps = graph.spec(x).shape
        centres, contexts = map(list, zip(*_spans(self.window, steps), strict=True))
        table = model.table(net, words)
        with net.layer("words", "embedding"):
            v = net.output(net.lookup(table, x))
        with new_layer(net, "contexts", "embedding"):
            context = net.parameter("table", table.spec.shape, Constant(0.0), decayed=True)
            own = _shifted(graph, x, contexts)
            drawn = noise.drawn(net, own, self.negatives)
            u, u_drawn = net.lookup(context, own), net.output(net.lookup(context, drawn))
        with new_layer(net, "loss", "loss"):
            centre = Expr(graph, _shifted(graph, v, centres))
            losses = _pair_losses(centre, Expr(graph, u), Expr(graph, u_drawn), Expr(graph, own), Expr(graph, drawn))
            counted = _word_mask(graph, batch["y"], losses.spec.dtype)
            of_centre, of_context = (Expr(graph, _shifted(graph, counted, each)) for each in (centres, contexts))
            weight = of_centre * of_context
            total = apply(ops.reduce_sum, losses * weight, axes=(1,))
            pairs = apply(ops.reduce_sum, weight, axes=(1,))
            loss = net.output((total / apply(ops.maximum, pairs, pairs.scalar(1.0))).tensor)
        if net.training:
            return Outputs(loss, {}, {}, loss)
        with net.layer("words", "embedding"):
            last = ops.reshape(graph, ops.slice(graph, x, begin=(0, steps - 1), size=(rows, 1)), (rows,))
            return Outputs(loss, {}, {}, _similarity(graph, table.tensor, last))


def _spans(window: int, steps: int) -> list[tuple[Span, Span]]:
    """Return the positions of centres and of contexts in an example of ``steps`` words, by distance and direction."""
    spans = []
    for distance in range(1, min(window, steps - 1) + 1):
        early, late = (0, steps - distance), (distance, steps)
        spans += [(early, late), (late, early)]
    return spans


def _pair_losses(centre: Expr, near: Expr, far: Expr, context: Expr, drawn: Expr) -> Expr:
    """Return the loss of each pair, (N, P).

    centre, near: vectors (N, P, features) of the centres and of the contexts. far: vectors (N, P, K, features) of drawn
    words. context (N, P), drawn (N, P, K): ids of the words.
    """
    rows, pairs, features = centre.spec.shape
    score = apply(ops.reduce_sum, centre * near, axes=(2,))
    of_drawn = apply(ops.reduce_sum, apply(ops.reshape, centre, shape=(rows, pairs, 1, features)) * far, axes=(3,))
    negative, positive = (
        apply(ops.sigmoid_cross_entropy, x, x * 0.0 + target) for x, target in ((of_drawn, 0.0), (score, 1.0))
    )
    same = apply(ops.equal, drawn, apply(ops.reshape, context, shape=(rows, pairs, 1)))
    return positive + apply(ops.reduce_sum, apply(ops.select, same, negative.scalar(0.0), negative), axes=(2,))


def _shifted(graph: Graph, values: Tensor, ranges: Sequence[Span]) -> Tensor:
    """Return the values (N, T, ...) at ranges of positions, joined along the axis of positions: (N, pairs, ...)."""
    rows, _, *rest = graph.spec(values).shape
    parts = [
        ops.slice(graph, values, begin=(0, begin, *(0 for _ in rest)), size=(rows, end - begin, *rest))
        for begin, end in ranges
    ]
    return ops.concat(graph, parts, axis=1)


def _word_mask(graph: Graph, y: Tensor, dtype: str) -> Tensor:
    """Return 1 for each word (N, T), 0 for padding. y: (N, T), the next words, negative if there is none."""
    next_word = Expr(graph, y)
    follows = apply(ops.cast, apply(ops.greater_equal, next_word, next_word.scalar(0)), dtype=dtype)
    rows, steps = follows.spec.shape
    first = ops.fill(graph, 1.0, (rows, 1), dtype)
    return ops.concat(graph, [first, ops.slice(graph, follows.tensor, begin=(0, 0), size=(rows, steps - 1))], axis=1)


def _similarity(graph: Graph, table: Tensor, words: Tensor) -> Tensor:
    """Return the cosine similarity (N, V) of words (N,) to all words, -1 for each word itself. table: (V, features)."""
    every = Expr(graph, table)
    length = apply(ops.reduce_sum, every.square(), axes=(1,), keepdims=True).sqrt()
    unit = every / apply(ops.maximum, length, length.scalar(1e-30))
    own = Expr(graph, ops.gather(graph, unit.tensor, words))
    found = apply(ops.matmul, own, unit, transpose_b=True)
    itself = apply(ops.one_hot, Expr(graph, words), depth=every.spec.shape[0], dtype=found.spec.dtype)
    itself = apply(ops.greater, itself, itself.scalar(0.5))
    return apply(ops.select, itself, found.scalar(-1.0), found).tensor


@dataclass(frozen=True)
class _Noise:
    """The distribution of drawn words, as tables of the alias method (Walker 1977).

    A uniform draw chooses an entry i; a second draw below kept[i] gives word i, otherwise word other[i].
    """

    kept: NDArray[np.float64]
    other: NDArray[np.int64]

    @classmethod
    def of(cls, weights: NDArray[np.float64]) -> "_Noise":
        """Return the distribution with probabilities in proportion to weights (V,); Vose 1991."""
        count = len(weights)
        scaled = weights * (count / weights.sum())
        kept, other = np.ones(count), np.arange(count)
        small, large = (list(np.flatnonzero(each)) for each in (scaled < 1.0, scaled >= 1.0))
        while small and large:
            low, high = small.pop(), large[-1]
            kept[low], other[low] = scaled[low], high
            scaled[high] -= 1.0 - scaled[low]
            if scaled[high] < 1.0:
                small.append(large.pop())
        return cls(kept, other)

    def drawn(self, net: NetworkBuilder, contexts: Tensor, count: int) -> Tensor:
        """Add the drawn words (N, pairs, count) for contexts (N, pairs), int64."""
        graph = net.graph
        rows, pairs = graph.spec(contexts).shape
        step = net.step if net.training else ops.fill(graph, 0.0, (), LABEL)
        shape = (rows, 2, pairs, count)
        key = f"{net.stamp.name}/negatives"
        draws = ops.uniform_rows(graph, step, net.index, shape=shape, dtype=_DRAWS, seed=net.seed, key=key)
        first, second = (
            apply(ops.reshape, Expr(graph, each), shape=(rows, pairs, count))
            for each in ops.split(graph, draws, 1, [1, 1])
        )
        entry = apply(ops.cast, first * float(len(self.kept)), dtype=LABEL)
        kept, other = (Expr(graph, ops.constant(graph, each)) for each in (self.kept, self.other))
        is_kept = apply(ops.less, second, apply(ops.gather, kept, entry))
        return apply(ops.select, is_kept, entry, apply(ops.gather, other, entry)).tensor
