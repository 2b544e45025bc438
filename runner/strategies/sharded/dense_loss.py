"""A loss over outputs whose units are sharded over workers; workers exchange sums and maxima, not outputs."""

from collections.abc import Callable, Mapping, Sequence

from runner.engine.graph import Graph, LayerStamp, Node, Tensor, ops
from runner.strategies.sharded.blueprint import BY_UNIT
from runner.strategies.sharded.dense_sharding import Cut, Rule, ShardedLayers, Spread

OfUnits = Callable[[int, Tensor], Tensor]
"""Function of a worker and its columns of a tensor (N, U) that returns one value for each example, (N, 1)."""


class DenseLoss:
    """Rules for the ops of a loss over outputs (N, U), of which worker j has the columns of its U_j units.

    Element-wise ops run on the workers with units, which receive their columns of targets. For a sum or a mean over the
    units, the worker that has an example receives the sum of U_j columns from each worker j.

    For logits (N, C), the worker that has an example receives one or two values from each worker j with classes. For a
    softmax: the logarithm l_j of the sum of the logits' exponentials, and the logit t_j of the label, or 0 if j does
    not have the label's class. The loss over all classes is log(sum_j exp(l_j)) - sum_j t_j. For logistic units, which
    need no normalization across classes (Krizhevsky 2014, section 5): the sum of the cross-entropies. For the
    prediction: the largest logit and its class. Every worker with classes receives the labels of all examples. Values
    are summed in the order of workers; if several logits are the largest, the first of their classes is predicted.

    Bytes on the wire, for values of b bytes, from worker j to another worker k with n_k examples of the pass: 2 n_k b
    for a softmax, and n_k b back for the gradient of l_j; n_k b for a sum or a mean, such as that of logistic
    units, and nothing back if its gradient is a constant; n_k (b + 8) for predictions. Each label is also sent, as 8
    bytes, to every other worker with classes, and each value of targets (N, U) to the worker with its unit.
    """

    def __init__(self, layers: ShardedLayers, counts: Sequence[int]) -> None:
        """layers: a pass with outputs sharded by units. counts: each worker's number of examples of the pass."""
        self._layers = layers
        self._counts = counts

    @property
    def rules(self) -> Mapping[str, Rule]:
        """Map from an op to its rule."""
        return {
            "softmax_cross_entropy": self._softmax,
            "one_hot": self._one_hot,
            "constant": self._constant,
            **dict.fromkeys(("reduce_sum", "reduce_mean"), self._sum),
            "argmax": self._argmax,
            **dict.fromkeys(BY_UNIT, self._layers.elementwise),
        }

    @property
    def _graph(self) -> Graph:
        return self._layers.graph

    def _softmax(self, node: Node) -> Sequence[Spread]:
        if self._layers.is_read(node[1]):
            self._layers.refuse(node)
        logits, labels = node.inputs
        spec = node.outputs[1]
        targets = self._targets(labels, spec.shape[1], spec.dtype, node.layer)
        sums = self._received(node, logits, lambda j, own: _log_sum(self._graph, own))
        chosen = self._received(node, logits, lambda j, own: _sum(self._graph, ops.mul(self._graph, own, targets[j])))
        losses = {}
        for k, parts in sums.items():
            with self._layers.on(k, node.layer):
                difference = ops.sub(self._graph, _log_sum(self._graph, parts), _sum(self._graph, chosen[k]))
                losses[k] = ops.reshape(self._graph, difference, (self._counts[k],), name=node.name)
        # Nothing reads the probabilities; the gradient is derived from the sums.
        return [Spread(Cut.EXAMPLES, losses), Spread(Cut.UNITS, {})]

    def _one_hot(self, node: Node) -> Sequence[Spread]:
        if node.outputs[0].rank != 2:
            self._layers.refuse(node)
        depth, dtype = node.attributes["depth"], node.attributes["dtype"]
        return [Spread(Cut.UNITS, self._targets(node.inputs[0], depth, dtype, node.layer))]

    def _constant(self, node: Node) -> Sequence[Spread]:
        """Add each worker's entries of a table with one entry per unit, (U,)."""
        spec = node.outputs[0]
        if spec.rank != 1:
            self._layers.refuse(node)
        parts = {}
        for j, (begin, end) in self._layers.shares(spec.shape[0]).items():
            with self._layers.on(j, node.layer):
                table = self._graph.add("constant", (), node.attributes, name=node.name)[0]
                parts[j] = ops.slice(self._graph, table, (begin,), (end - begin,), name="own")
        return [Spread(Cut.UNITS, parts)]

    def _sum(self, node: Node) -> Sequence[Spread]:
        """Add the sum or the mean of all units of each example."""
        (x,) = node.inputs
        if self._layers[x].cut is Cut.EXAMPLES and 0 not in node.attributes["axes"]:
            return self._layers.by_example(node)
        if node.attributes["axes"] != (1,):
            self._layers.refuse(node)
        found = {}
        for k, parts in self._received(node, x, lambda j, own: _sum(self._graph, own)).items():
            with self._layers.on(k, node.layer):
                found[k] = ops.reduce_sum(self._graph, parts, **node.attributes, name=node.name)
                if node.op == "reduce_mean":
                    found[k] = ops.scale(self._graph, found[k], 1.0 / self._layers.units(x))
        return [Spread(Cut.EXAMPLES, found)]

    def _argmax(self, node: Node) -> Sequence[Spread]:
        if node.attributes["axis"] != 1:
            self._layers.refuse(node)
        (x,) = node.inputs
        if self._layers[x].cut is Cut.EXAMPLES:
            return self._layers.by_example(node)
        first = {j: begin for j, (begin, _) in self._layers.shares(self._layers.units(x)).items()}
        largest = self._received(node, x, lambda j, own: _max(self._graph, own))
        places = self._received(node, x, lambda j, own: _place_of_max(self._graph, own, first[j]))
        found = {}
        for k, values in largest.items():
            with self._layers.on(k, node.layer):
                found[k] = _at_max(self._graph, values, places[k], node.name)
        return [Spread(Cut.EXAMPLES, found)]

    def _received(self, node: Node, tensor: Tensor, value_of: OfUnits) -> dict[int, Tensor]:
        """Return, for each worker k with examples, the values (n_k, J) of the J workers with units, in worker order."""
        if self._layers[tensor].cut is not Cut.UNITS:
            self._layers.refuse(node)
        values = {}
        for j, own in self._layers[tensor].parts.items():
            with self._layers.on(j, node.layer):
                values[j] = value_of(j, own)
        return self._layers.rows(Spread(Cut.UNITS, values), self._counts, node.layer)

    def _targets(self, labels: Tensor, classes: int, dtype: str, layer: LayerStamp | None) -> dict[int, Tensor]:
        """Return, for each worker j with classes, its columns (N, C_j) of the one-hot labels."""
        targets = {}
        for j, (begin, end) in self._layers.shares(classes).items():
            whole = self._layers.whole(labels, j, layer)
            with self._layers.on(j, layer):
                encoded = ops.one_hot(self._graph, whole, depth=classes, dtype=dtype, name="targets")
                targets[j] = ops.slice(self._graph, encoded, (0, begin), (sum(self._counts), end - begin), name="own")
        return targets


def _log_sum(graph: Graph, x: Tensor) -> Tensor:
    """Return log(sum(exp(x))), (N, 1), over the last axis of x (N, M), computed without overflow."""
    # The maximum cancels in the value and in the gradient, so the gradient of the maximum is not needed.
    largest = ops.stop_gradient(graph, _max(graph, x))
    return ops.add(graph, largest, ops.log(graph, _sum(graph, ops.exp(graph, ops.sub(graph, x, largest)))))


def _sum(graph: Graph, x: Tensor) -> Tensor:
    return ops.reduce_sum(graph, x, axes=(1,), keepdims=True)


def _max(graph: Graph, x: Tensor) -> Tensor:
    return ops.reduce_max(graph, x, axes=(1,), keepdims=True)


def _place_of_max(graph: Graph, x: Tensor, first: int) -> Tensor:
    """Return (N, 1) int64: for each row of x (N, M), the first index of its maximum, counted from ``first``."""
    place = ops.add(graph, ops.argmax(graph, x, axis=1), ops.fill(graph, float(first), (), "int64"))
    return ops.reshape(graph, place, (graph.spec(x).shape[0], 1))


def _at_max(graph: Graph, values: Tensor, places: Tensor, name: str) -> Tensor:
    """Return (n,) int64: for each row, the entry of places (n, M) at the first maximum of values (n, M)."""
    spec = graph.spec(values)
    chosen = ops.one_hot(graph, ops.argmax(graph, values, axis=1), depth=spec.shape[1], dtype=spec.dtype)
    return ops.reduce_sum(graph, ops.mul(graph, ops.cast(graph, chosen, "int64"), places), axes=(1,), name=name)
