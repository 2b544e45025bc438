"""A copy of the network on one device, and sums over the shares of a batch."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

from runner.engine.compile.program import InputSlot
from runner.engine.graph import Gradient, Graph, Rows, Tensor, Variable, Variables, gradients, ops
from runner.engine.graph.network import LOSS, CarriedState, Lookup, NetworkBuilder, Outputs, StateUpdate
from runner.engine.graph.rows import dense, joined
from runner.fields import BEGINS
from runner.strategies.averaged import Averaged
from runner.strategies.base import Workload

Share = tuple[int, int]  # (lo, hi): examples lo..hi-1 of a batch, or units lo..hi-1 of a layer


def shares(total: int, parts: int) -> list[Share]:
    """Divide range(total) into ``parts`` ranges of nearly equal size, larger ones first, like numpy.array_split."""
    base, extra = divmod(total, parts)
    edges = [0]
    for part in range(parts):
        edges.append(edges[-1] + base + (part < extra))
    return list(pairwise(edges))


def shares_of_units(units: int, workers: int) -> dict[int, Share]:
    """Return worker -> (begin, end) of its units, in nearly equal ranges; workers without units are left out."""
    return {j: share for j, share in enumerate(shares(units, workers)) if share[1] > share[0]}


@dataclass(frozen=True)
class Pass:
    """The layers of one copy of the network, applied to its share of the batch.

    scope: the scope of the nodes within the replica. state_updates: statistics of the share, not weighted by size.
    """

    share: Share
    scope: str
    state_updates: Sequence[StateUpdate]


@dataclass(frozen=True)
class Forward(Pass):
    """The forward pass of one copy, from inputs to loss.

    metrics: name -> loss or metric, summed over the share and divided by the size of the whole batch. lookups: the
    lookups of table rows in the pass.
    """

    metrics: Mapping[str, Tensor]
    lookups: Sequence[Lookup] = ()

    @property
    def loss(self) -> Tensor:
        """The share's part of the batch's mean loss."""
        return self.metrics[LOSS]


@dataclass(frozen=True)
class Gradients:
    """The results of one copy on its share of the batch, already divided by the size of the whole batch.

    The sums of the results over all shares are the loss, metrics, gradients and statistics of the batch. settled:
    updates of moving averages whose values are final and equal in all copies, and therefore are not summed.
    """

    metrics: Mapping[str, Tensor]
    gradients: Sequence[tuple[Variable, Gradient]]
    state_updates: Sequence[StateUpdate]
    settled: Sequence[StateUpdate] = ()

    @property
    def parts(self) -> list[tuple[Variable, Gradient]]:
        """The gradients and statistics to be summed over the copies, each with its variable."""
        return [*self.gradients, *((each.variable, each.batch_value) for each in self.state_updates)]

    def with_parts(self, parts: Sequence[Gradient]) -> "Gradients":
        """Return a copy of these results in which ``parts`` replace :attr:`parts`, in the same order."""
        count = len(self.gradients)
        pairs = [(variable, given) for (variable, _), given in zip(self.gradients, parts[:count], strict=True)]
        statistics = [each for each in parts[count:] if not isinstance(each, Rows)]
        updates = [replace(each, batch_value=v) for each, v in zip(self.state_updates, statistics, strict=True)]
        return replace(self, gradients=pairs, state_updates=updates)


class Replica:
    """One copy of the network on one device, with its variables, scalar inputs and shares of the batches.

    carrying, eval_carrying: nodes that keep the carried state of a training step and of an evaluation batch for the
    next one. eval_states: the state that evaluations carry, which checkpoints do not contain.
    """

    def __init__(
        self,
        graph: Graph,
        workload: Workload,
        *,
        device: str,
        prefix: str = "",
        variables: Variables | None = None,
        batch_size: int | None = None,
        carries: bool = True,
    ) -> None:
        """variables: the store of the network's variables; None for a new store on this device.

        batch_size: number of examples of the whole batch; carried state has one row per example. None: the workload's.
        carries: whether the copy can carry state; never with L-BFGS, which evaluates a batch several times.
        """
        self.graph = graph
        self.workload = workload
        self.device = device
        self.prefix = prefix
        if variables is None:
            variables = Variables(graph, seed=workload.seed, prefix=prefix, device=device)
        self.variables = variables
        self.batch_size = workload.batch_size if batch_size is None else batch_size
        self.carries = carries and not workload.optimizer.line_search
        self.carrying: list[str] = []
        self.eval_carrying: list[str] = []
        self.eval_states = Variables(graph, seed=workload.seed, prefix=self._scoped("eval_state"), device=device)
        self.train_inputs: list[InputSlot] = []
        self.eval_inputs: list[InputSlot] = []
        with self.within(""):
            self.step = ops.placeholder(graph, (), "int64", name="step")
            self.learning_rate = rate_input(graph, workload)

    def move_to(self, graph: Graph) -> None:
        """Continue in ``graph``, a rewritten graph that contains all nodes of this replica under the same names."""
        self.graph = graph
        self.variables.graph = graph
        self.eval_states.graph = graph

    def compute_gradients(self, share: Share, scope: str) -> Gradients:
        """Add the forward and backward passes over a share of the training batch."""
        forward = self.forward(share, scope)
        pairs = self.differentiate(forward)
        return Gradients(forward.metrics, pairs, self.weighted(forward))

    def forward(self, share: Share, scope: str) -> Forward:
        """Add the forward pass over a share of the training batch."""
        with self.within(scope):
            batch = self.inputs("train", share)
            carried = CarriedState(self.variables, share, self.batch_size) if self.carries else None
            net = self.builder(batch, self.variables, training=True, carried=carried)
            outputs = self.workload.network(net, batch)
            self.carrying += net.carrying
            # A gradient is the sum over examples divided by the batch size, so that gradients of shares can be added.
            factor, metrics = 1.0 / self.workload.batch_size, {}
            for name, per_example in outputs.summed.items():
                total = ops.reduce_sum(self.graph, per_example, axes=(0,))
                metrics[name] = scaled(self.graph, total, factor, name)
        return Forward(share, scope, net.state_updates, metrics, net.lookups)

    def differentiate(self, forward: Forward) -> list[tuple[Variable, Gradient]]:
        """Add the backward pass of a forward pass; return each trainable variable with the gradient of the loss.

        The gradient of a table holds rows (:mod:`runner.engine.graph.rows`) if no node reads the table except lookups,
        and if the lookups of a whole batch have fewer indices than the table has rows or the optimizer is lazy. If each
        lookup has equally many indices for every example, this rule does not depend on the share, so that the copies of
        all strategies add the same values in the same order. Otherwise, copies with shares of different sizes can have
        both kinds of gradients of one table; their sum is a tensor.
        """
        scope, trained = self._scoped(f"{forward.scope}/gradients"), self.variables.trainable
        read = [each.rows for each in forward.lookups]
        with self.within(forward.scope):
            xs = [*(variable.tensor for variable in trained), *read]
            found = gradients(self.graph, [forward.loss], xs, scope=scope, stop=read)
            looked_up: dict[str, list[Rows]] = defaultdict(list)
            for each, dy in zip(forward.lookups, found[len(trained) :], strict=True):
                if dy is not None:
                    looked_up[each.table.name].append(Rows(each.indices, dy, each.table.spec))
            pairs = zip(trained, found, strict=False)
            totals = [self._total(table, whole, looked_up[table.name], forward.share) for table, whole in pairs]
        return self.paired(trained, totals, forward.scope)

    def _total(self, table: Variable, whole: Tensor | None, parts: Sequence[Rows], share: Share) -> Gradient | None:
        """Return the sum of the gradient ``whole`` of a variable and the gradients of its lookups."""
        if not parts:
            return whole
        graph = self.graph
        with graph.layer(table.layer):
            rows = joined(graph, parts)
            of_batch = graph.spec(rows.indices).size * self.workload.batch_size // (share[1] - share[0])
            if whole is None and (of_batch < table.spec.shape[0] or self.workload.optimizer.lazy):
                return rows
            total = dense(graph, rows)
            return total if whole is None else ops.add(graph, whole, total)

    def paired(
        self, variables: Sequence[Variable], found: Sequence[Gradient | None], scope: str
    ) -> list[tuple[Variable, Gradient]]:
        """Return each variable with its gradient, which is zero if the loss does not depend on the variable."""
        with self.within(scope):
            return [
                (v, ops.fill(self.graph, 0.0, v.spec.shape, v.spec.dtype) if each is None else each)
                for v, each in zip(variables, found, strict=True)
            ]

    def weighted(self, passed: Pass) -> list[StateUpdate]:
        """Return the statistics of a pass, times share size / batch size: summands of the mean over the batch."""
        weight = (passed.share[1] - passed.share[0]) / self.workload.batch_size
        with self.within(passed.scope):
            return [weighted(self.graph, update, weight) for update in passed.state_updates]

    def apply(self, totals: Sequence[tuple[Variable, Gradient]], state_updates: Sequence[StateUpdate]) -> list[str]:
        """Add the optimizer's update and the updates of moving averages; return the assign nodes to run."""
        with self.within("update"):
            clipped = self.workload.optimizer.clipped(self.graph, totals)
        return self.assign(clipped, state_updates)

    def assign(self, clipped: Sequence[tuple[Variable, Gradient]], state_updates: Sequence[StateUpdate]) -> list[str]:
        """Add the same updates as :meth:`apply`, from gradients that are already clipped."""
        with self.within("update"):
            targets = self.workload.optimizer.assign(
                self.variables, clipped, learning_rate=self.learning_rate, step=self.step
            )
            return [*targets, *(advance(self.graph, update) for update in state_updates)]

    def number_of_update(self, updates: int, number: int) -> Tensor:
        """Return step * updates + number, () int64: the index in the run of update ``number`` (0, 1, ...) of a step."""
        if updates == 1:
            return self.step
        per_step, own = (ops.fill(self.graph, float(value), (), "int64") for value in (updates, number))
        return ops.add(self.graph, ops.mul(self.graph, self.step, per_step), own)

    @property
    def evaluated(self) -> Variables:
        """The variables that evaluations read: the averages of trained variables, if the optimizer keeps any."""
        return self.variables if self.workload.optimizer.average.decay is None else Averaged(self.variables)

    def evaluate(self, share: Share, *, averages: bool = True) -> tuple[Outputs, Mapping[str, Tensor]]:
        """Add a forward pass over a share of an evaluation batch; return outputs and inputs.

        averages: whether the pass reads :attr:`evaluated`; if not, it reads the trained variables.
        """
        with self.within("eval"):
            batch = self.inputs("test", share)
            variables = self.evaluated if averages else self.variables
            carried = CarriedState(self.eval_states, share, self.workload.eval_batch_size)
            net = self.builder(batch, variables, training=False, carried=carried)
            outputs = self.workload.network(net, batch)
            self.eval_carrying += net.carrying
            return outputs, batch

    @contextmanager
    def within(self, scope: str) -> Iterator[None]:
        """Add nodes on the replica's device, in a scope below the replica's prefix."""
        with self.graph.absolute_scope(self._scoped(scope)), self.graph.device(self.device):
            yield

    def builder(
        self, batch: Mapping[str, Tensor], variables: Variables, *, training: bool, carried: CarriedState | None = None
    ) -> NetworkBuilder:
        """Return a builder that adds to this replica the layers that compute a batch."""
        return NetworkBuilder(
            self.graph,
            variables,
            dtype=self.workload.dtype,
            seed=self.workload.seed,
            training=training,
            step=self.step,
            index=batch["index"],
            recompute=self.workload.recompute,
            begins=batch.get(BEGINS),
            carried=carried,
        )

    def inputs(self, split: str, share: Share) -> dict[str, Tensor]:
        """Add the placeholders for a share of a batch of ``split``; floats are cast to the network's dtype."""
        batch = placeholders(self.graph, self.workload, share[1] - share[0])
        fed = self.train_inputs if split == "train" else self.eval_inputs
        fed += [InputSlot(tensor, split, field, *share) for field, tensor in batch.items()]
        return cast_fields(self.graph, self.workload, batch)

    def _scoped(self, scope: str) -> str:
        return "/".join(filter(None, (self.prefix, scope)))


def differentiate_together(
    replicas: Sequence[Replica],
    variables: Sequence[Sequence[Variable]],
    scope: str,
    ys: Sequence[Tensor],
    grad_ys: Sequence[Tensor] | None = None,
    inputs: Sequence[Tensor] = (),
) -> tuple[list[list[tuple[Variable, Gradient]]], list[Tensor | None]]:
    """Add one backward pass for several replicas, whose outputs may depend on the examples of all of them.

    variables: the variables of each replica. scope: the scope of the forward passes. ys, grad_ys: see
    :func:`~runner.engine.graph.autodiff.gradients`. Returns each replica's variables with their gradients, as
    :meth:`Replica.paired` does, and the gradients of ``inputs``.
    """
    wanted = [variable.tensor for own in variables for variable in own]
    found = iter(gradients(replicas[0].graph, ys, [*wanted, *inputs], grad_ys, scope=f"{scope}/gradients"))
    each = zip(replicas, variables, strict=True)
    pairs = [replica.paired(own, [next(found) for _ in own], scope) for replica, own in each]
    return pairs, list(found)


def network_variables(workload: Workload) -> list[Variable]:
    """Return the variables of a network in order of creation, from a forward pass in a separate graph."""
    scratch = Replica(Graph(), workload, device="")
    scratch.forward((0, 1), "train")
    return list(scratch.variables)


def rate_input(graph: Graph, workload: Workload) -> Tensor:
    """Add the placeholder of the learning rates of a step, of the shape that the optimizer expects."""
    return ops.placeholder(graph, workload.optimizer.rate_shape, workload.state_dtype, name="learning_rate")


def placeholders(graph: Graph, workload: Workload, count: int) -> dict[str, Tensor]:
    """Add the placeholders of a batch of ``count`` examples, one for each field."""
    return {
        name: ops.placeholder(graph, (count, *each.shape), each.dtype or workload.dtype, name=name)
        for name, each in workload.specs.items()
    }


def cast_fields(graph: Graph, workload: Workload, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch in which the fields that define no dtype have the dtype of activations."""
    floats = [name for name, each in workload.fields.items() if each.dtype is None]
    return {**batch, **{name: ops.as_dtype(graph, batch[name], workload.dtype) for name in floats}}


def weighted(graph: Graph, update: StateUpdate, weight: float) -> StateUpdate:
    """Return ``weight`` times a statistic of a share: a summand of the mean over the batch."""
    part = scaled(graph, update.batch_value, weight, "statistic")
    return replace(update, batch_value=part)


def advance(graph: Graph, update: StateUpdate) -> str:
    """Add the assignment of the next value to a moving average; return the assign node to run."""
    return ops.assign(graph, update.variable.tensor, advanced(graph, update)).node


def advanced(graph: Graph, update: StateUpdate) -> Tensor:
    """Return the next value of a moving average: decay * old value + (1 - decay) * batch value."""
    old = scaled(graph, update.variable.tensor, update.decay, "old")
    new = scaled(graph, update.batch_value, 1.0 - update.decay, "new")
    return ops.add(graph, old, new)


def scaled(graph: Graph, tensor: Tensor, factor: float, name: str) -> Tensor:
    """Return factor * tensor, as a node with this name."""
    return ops.mul(graph, tensor, ops.fill(graph, factor, (), graph.spec(tensor).dtype), name=name)


def ordered_sum(graph: Graph, parts: Sequence[Tensor], name: str = "sum") -> Tensor:
    """Return the sum of the parts, added in the given order: ((p0 + p1) + p2) + ..."""
    return parts[0] if len(parts) == 1 else ops.add_n(graph, parts, name=name)


def total_of(graph: Graph, parts: Sequence[Gradient]) -> Gradient:
    """Return the sum of gradients of one variable in the given order; if all hold rows, the rows are concatenated."""
    rows = [part for part in parts if isinstance(part, Rows)]
    if len(rows) == len(parts):
        return joined(graph, rows)
    return ordered_sum(graph, [dense(graph, part) for part in parts])


def summed(computed: Sequence[Gradients], total: Callable[[Variable, Sequence[Gradient]], Gradient]) -> Gradients:
    """Return the first copy's results, each part replaced by ``total(variable, tensors of all copies)``."""
    columns = zip(*(each.parts for each in computed), strict=True)
    return computed[0].with_parts([total(column[0][0], [tensor for _, tensor in column]) for column in columns])


def batch_metrics(
    replica: Replica, parts: Sequence[Forward | Gradients], weights: Sequence[float] | None = None
) -> dict[str, Tensor]:
    """Add the loss and metrics of the batch, summed over its parts in order, on the device of ``replica``.

    weights: the factor of each part; None if the parts are already divided by the size of the whole batch.
    """
    graph = replica.graph
    with graph.device(replica.device), graph.absolute_scope("train/total"):
        metrics = {}
        for name in parts[0].metrics:
            values = [each.metrics[name] for each in parts]
            if weights is not None:
                values = [scaled(graph, each, weight, "part") for each, weight in zip(values, weights, strict=True)]
            metrics[name] = ordered_sum(graph, values, name)
    return metrics
