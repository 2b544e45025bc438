"""Dense layers sharded by units over several workers, built from an unsharded forward pass."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NoReturn

from runner.engine.graph import Declaration, Graph, LayerStamp, Node, Tensor, TensorSpec, Variables, ops
from runner.engine.graph.variables import Part
from runner.errors import ConfigError
from runner.strategies.replica import Replica, Share, shares_of_units
from runner.strategies.sharded.blueprint import BY_UNIT, Blueprint, joined, mask_of_units

DENSE_OPS = "dense and element-wise layers, dropout and batch normalisation"
LOSS_OPS = (
    "element-wise ops on tensors (N, units) and (N, 1), scalar constants, reduce_sum and reduce_mean over axis 1, "
    "argmax over axis 1, one_hot of (N,), constants (units,), and softmax_cross_entropy without its probabilities"
)


class Cut(Enum):
    """The division of a tensor over workers: EXAMPLES by rows, UNITS by columns; COPIES: whole on each worker."""

    EXAMPLES = auto()
    UNITS = auto()
    COPIES = auto()


@dataclass(frozen=True)
class Spread:
    """A tensor distributed over workers. parts: worker -> its part, in the order of workers, without empty parts."""

    cut: Cut
    parts: Mapping[int, Tensor]


Rule = Callable[[Node], Sequence[Spread]]
"""Function that adds a blueprint's node on every worker with a part of its outputs; returns the outputs in order."""


class ShardedLayers:
    """Dense layers of one pass, sharded over K workers: worker j has the j-th range of ``shares(U, K)`` of U units.

    Weights (features, U) are sharded by columns, and variables with one value per unit by units; a worker without units
    has no shard. A matrix product needs all features, so each worker gathers the rows or columns of the other workers.
    Ops that treat every unit separately (biases, ReLU, dropout, batch normalisation over the examples of the pass) run
    on the workers that hold the units. The added nodes can be differentiated: gradients of gathered tensors are sent
    back to the workers that hold the parts, and summed there.

    Bytes on the wire, for values of b bytes: for a product over N examples and F features, each worker with units
    receives the features it does not hold, and sends the same number of bytes in the backward pass. In all, K workers
    with units receive (K - 1) N F b bytes forward and send as many backward. Dropout gathers the indices of examples:
    each worker with units receives 8 bytes for each example of another worker. For an element-wise op of the loss over
    outputs and targets (N, U), each worker with units receives its U_j columns of the other workers' targets, once.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        replicas: Sequence[Replica],
        stores: Sequence[Variables],
        scope: str,
        held: Mapping[Tensor, Spread],
    ) -> None:
        """Start a pass.

        blueprint: a forward pass over the pass's examples. stores: each worker's store of variable shards. scope: the
        scope of added nodes in each replica. held: tensor of the blueprint that the layers read -> its distribution.
        """
        self._blueprint = blueprint
        self._replicas = replicas
        self._stores = stores
        self._scope = scope
        self._held = dict(held)
        self._gathered: dict[tuple[Tensor, int], Tensor] = {}

    @property
    def graph(self) -> Graph:
        return self._replicas[0].graph

    def __getitem__(self, tensor: Tensor) -> Spread:
        """Return the distribution of a tensor of the blueprint."""
        return self._held[tensor]

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor in self._held

    def add(self, nodes: Sequence[Node], rules: Mapping[str, Rule] | None = None) -> None:
        """Add nodes of the blueprint, in graph order, each on all workers that have a part of its outputs.

        rules: op -> rule; for other ops, the rules of dense layers apply. Raises ConfigError if no rule fits a node.
        """
        for declared in self._blueprint.declared_for(nodes):
            self._declare(declared)
        for node in nodes:
            outputs = self._rule(node, rules or {})(node)
            self._held.update(zip(node.tensors, outputs, strict=True))

    def rows(self, spread: Spread, counts: Sequence[int], layer: LayerStamp | None) -> dict[int, Tensor]:
        """Exchange columns for rows: return, for each worker with examples, all units of these examples, (count, U).

        spread: (N, U_j) on each worker j with units. counts: number of examples of each worker, in row order. layer:
        the layer of the added nodes. Bytes on the wire: worker j sends N - n_j rows of its U_j columns; all workers
        send (N U - sum_j n_j U_j) b forward and as many bytes backward.
        """
        return self._exchange(spread, 0, {k: count for k, count in enumerate(counts) if count}, layer)

    def of_examples(self, tensor: Tensor, counts: Sequence[int]) -> Mapping[int, Tensor]:
        """Return, for each worker with examples, the rows of its examples. tensor, counts: see :meth:`rows`."""
        held = self._held[tensor]
        if held.cut is not Cut.UNITS:
            return held.parts
        return self.rows(held, counts, self._blueprint.graph.nodes[tensor.node].layer)

    def whole(self, tensor: Tensor, worker: int, reader: LayerStamp | None) -> Tensor:
        """Return a whole tensor of the blueprint on one worker, gathered once in the layer of its first reader."""
        held = self._held[tensor]
        if held.cut is Cut.COPIES:
            return held.parts[worker]
        if (tensor, worker) not in self._gathered:
            axis = 0 if held.cut is Cut.EXAMPLES else self._spec(tensor).rank - 1
            with self.on(worker, reader):
                self._gathered[tensor, worker] = joined(self.graph, list(held.parts.values()), axis)
        return self._gathered[tensor, worker]

    @contextmanager
    def on(self, worker: int, layer: LayerStamp | None) -> Iterator[None]:
        """Add nodes of a layer on a worker."""
        with self._replicas[worker].within(self._scope), self.graph.layer(layer):
            yield

    def shares(self, units: int) -> dict[int, Share]:
        """Return worker -> (begin, end) of its units, for the workers with units."""
        return shares_of_units(units, len(self._replicas))

    def units(self, tensor: Tensor) -> int:
        """Return the number of units of a tensor of the blueprint, the size of its last axis."""
        return self._spec(tensor).shape[-1]

    def elementwise(self, node: Node) -> Sequence[Spread]:
        """Add an element-wise op.

        If an input is sharded by units, each worker with units computes its columns of the output (N, U): it receives
        its columns of an input (N, U) that is sharded by examples, and the whole of an input (N, 1). Otherwise, each
        worker computes the rows of its examples.
        """
        rank, by_units = node.outputs[0].rank, any(self._held[tensor].cut is Cut.UNITS for tensor in node.inputs)
        ranks = {self._spec(tensor).rank for tensor in node.inputs if self._held[tensor].cut is Cut.EXAMPLES}
        # Broadcasting would align the examples of an input of lower rank, (N,) next to (N, U), with the output's units.
        if ranks - {rank} or (ranks and by_units and rank != 2):
            self.refuse(node)
        return self._on_units(node) if by_units else self.by_example(node)

    def by_example(self, node: Node) -> Sequence[Spread]:
        """Add an op that treats every example separately, on the workers that hold the examples of its inputs."""
        read = [self._held[tensor] for tensor in node.inputs]
        by_examples = [each for each in read if each.cut is Cut.EXAMPLES]
        first = (by_examples or read)[0]
        return self._added(node, first.cut, first.parts, [each.parts for each in read])

    def is_read(self, tensor: Tensor) -> bool:
        """Return whether a node of the blueprint reads a tensor, or the network returns it as a loss or other value."""
        returned = any(tensor == each for _, each in self._blueprint.answers)
        return returned or tensor in self._blueprint.graph.consumers()

    def refuse(self, node: Node) -> NoReturn:
        """Raise ConfigError for a node that cannot be sharded by units."""
        layer = f"layer {node.layer.name!r} ({node.layer.kind})" if node.layer else "a node without a layer"
        shapes = ", ".join(str(self._spec(tensor).shape) for tensor in node.inputs) or "none"
        expected = LOSS_OPS if node.layer and node.layer.kind == "loss" else DENSE_OPS
        raise ConfigError(
            f"parallelism=hybrid: {layer} follows a dense layer, and its op {node.op!r} cannot be sharded by units "
            f"(shapes of its inputs: {shapes}); expected {expected}; use parallelism=sync_data"
        )

    def _spec(self, tensor: Tensor) -> TensorSpec:
        return self._blueprint.graph.spec(tensor)

    def _exchange(
        self, spread: Spread, axis: int, sizes: Mapping[int, int], layer: LayerStamp | None
    ) -> dict[int, Tensor]:
        """Cut each worker's part along an axis and send a piece to each worker in ``sizes``; receivers join the pieces.

        axis: 0 or 1; the pieces are joined along the other axis. sizes: receiver -> extent of its pieces.
        """
        sent = {}
        for k, part in spread.parts.items():
            with self.on(k, layer):
                sent[k] = ops.split(self.graph, part, axis, list(sizes.values()), name=("rows", "columns")[axis])
        received = {}
        for i, j in enumerate(sizes):
            with self.on(j, layer):
                received[j] = joined(self.graph, [pieces[i] for pieces in sent.values()], axis=1 - axis)
        return received

    def _columns(self, tensor: Tensor, units: int, layer: LayerStamp | None) -> Mapping[int, Tensor]:
        """Return, for each worker with units, the part of a tensor that it reads for its columns of an output (N, U).

        tensor: (N, U), (U,), (N, 1) or a scalar. layer: the layer of the reader.
        """
        held, width = self._held[tensor], self._spec(tensor).shape[-1:]
        if held.cut is Cut.COPIES or (held.cut is Cut.UNITS and width == (units,)):
            return held.parts
        if width == (1,):
            return {j: self.whole(tensor, j, layer) for j in self.shares(units)}
        sizes = {j: end - begin for j, (begin, end) in self.shares(units).items()}
        return self._exchange(held, 1, sizes, layer)

    def _on_units(self, node: Node) -> Sequence[Spread]:
        """Add an op that computes each unit of its outputs from the same unit of its inputs."""
        units = node.outputs[0].shape[-1]
        read = [self._columns(tensor, units, node.layer) for tensor in node.inputs]
        return self._added(node, Cut.UNITS, self.shares(units), read)

    def _added(
        self, node: Node, cut: Cut, workers: Iterable[int], read: Sequence[Mapping[int, Tensor]]
    ) -> Sequence[Spread]:
        added = {j: self._add(node, j, [each[j] for each in read]) for j in workers}
        return [Spread(cut, {j: copy[port] for j, copy in added.items()}) for port in range(len(node.outputs))]

    def _declare(self, declared: Declaration) -> None:
        """Declare each worker's units of a variable in the worker's store."""
        if not declared.spec.rank:
            raise ConfigError(
                f"parallelism=hybrid: variable {declared.name!r} after the first dense layer is a scalar; expected "
                "variables whose last axis is units; use parallelism=sync_data"
            )
        axis = declared.spec.rank - 1
        for j, (lo, hi) in self.shares(declared.spec.shape[axis]).items():
            part = Part(declared.spec, axis, lo, hi)
            self._stores[j].declare(replace(declared, spec=part.spec, part=part), self._replicas[j].device)

    def _rule(self, node: Node, others: Mapping[str, Rule]) -> Rule:
        own = {"variable": self._variable, "fill": self._fill, "matmul": self._matmul, "dropout_mask": self._mask}
        rules = {**dict.fromkeys(BY_UNIT, self._by_unit), **own, **others}
        if node.op not in rules:
            self.refuse(node)
        return rules[node.op]

    def _variable(self, node: Node) -> Sequence[Spread]:
        name = self._blueprint.declarations[node[0]].name
        return [Spread(Cut.UNITS, {j: store[name].tensor for j, store in enumerate(self._stores) if name in store})]

    def _fill(self, node: Node) -> Sequence[Spread]:
        if node.outputs[0].rank:
            self.refuse(node)
        return [Spread(Cut.COPIES, {j: self._add(node, j, [])[0] for j in range(len(self._replicas))})]

    def _matmul(self, node: Node) -> Sequence[Spread]:
        x, weights = node.inputs
        transposed = node.attributes["transpose_a"] or node.attributes["transpose_b"]
        if transposed or self._held[weights].cut is not Cut.UNITS:
            self.refuse(node)
        products = {
            j: self._add(node, j, [self.whole(x, j, node.layer), shard])[0]
            for j, shard in self._held[weights].parts.items()
        }
        return [Spread(Cut.UNITS, products)]

    def _mask(self, node: Node) -> Sequence[Spread]:
        step, index = node.inputs
        shape = node.attributes["shape"]
        if len(shape) != 2:
            self.refuse(node)
        masks = {}
        for j, (lo, hi) in self.shares(shape[1]).items():
            inputs = [self._held[step].parts[j], self.whole(index, j, node.layer)]
            masks[j] = self._add(node, j, inputs, **mask_of_units(node, (lo, hi)))[0]
        return [Spread(Cut.UNITS, masks)]

    def _by_unit(self, node: Node) -> Sequence[Spread]:
        if any(self._held[tensor].cut is Cut.EXAMPLES for tensor in node.inputs):
            self.refuse(node)
        return self.elementwise(node)

    def _add(self, node: Node, worker: int, inputs: Sequence[Tensor], **changes: object) -> Node:
        with self.on(worker, node.layer):
            return self.graph.add(node.op, inputs, {**node.attributes, **changes}, name=node.name)
