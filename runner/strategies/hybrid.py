"""``hybrid``: data parallelism below the dense layers, model parallelism in them (Krizhevsky 2014, section 4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

from runner.bounds import BytesOrZero, Count, Positive, SmallCount
from runner.engine.compile.program import Program
from runner.engine.graph import Gradient, Graph, Tensor, Variable, worker_task
from runner.errors import ConfigError, require_one_of
from runner.strategies.base import Strategy, Workload
from runner.strategies.clients import Scored, program
from runner.strategies.collectives import ALL_REDUCE, COMBINES, Combine, collective, exchange
from runner.strategies.replica import Gradients, Replica, batch_metrics, differentiate_together, shares
from runner.strategies.sharded.dense_training import DenseTraining, Pairs
from runner.strategies.sharded.hybrid_layers import Body, Rows, add_body, add_dense, rows_of
from runner.strategies.sharded.network_parts import SCHEMES, Parts, PartsOf, dense_passes, splitting, updates_per_batch
from runner.strategies.synchronous.batch_statistics import STATISTICS, Normalised


@dataclass
class Hybrid(Strategy):
    """K workers; each computes the lower layers for its share of the batch, then its units of the dense layers.

    Weights of dense layers are sharded by output units: the j-th shard and its optimizer slots are on worker j. The
    layers below are on every worker, as in ``sync_data``. With default options and no batch normalisation, an update
    equals that of ``single`` up to rounding.

    scheme: the order in which the inputs of the first dense layer (the boundary) pass through the dense layers
    (Krizhevsky 2014, section 4). ``a``: one pass; every worker gathers the inputs of the whole batch. ``b``: K passes;
    in each, a different worker sends the inputs of its examples to all others. ``c``: K passes, each with 1/K of every
    worker's examples. In b and c, the inputs of later passes are sent during a pass; a pass of b waits for one worker's
    inputs, a pass of c for those of every worker.
    turns: for scheme b, whether a worker sends its inputs only after it has received those of the previous pass, so
    that one worker at a time sends, as in the paper. Otherwise, all workers send at the same time.
    fc_batch: number of examples per update of the dense layers (section 4.2). If null or the batch size, the gradients
    of all passes are summed for one update. A smaller value, for schemes b and c only, must divide the batch size: each
    of batch / fc_batch passes is followed by an update, and the next pass uses the new weights; other layers are
    updated once a batch.
    dense_lr_factor: factor by which the learning rate of dense layers, and of layers between them, is multiplied.

    The loss may be that of a classifier or of a regression, or a loss of several outputs and fields whose ops
    :class:`~runner.strategies.sharded.dense_loss.DenseLoss` can split by units. ``build`` rejects any other loss, a
    network without dense layers, and a network in which a layer after the first dense layer reads an activation from
    before that layer. If the network starts with dense layers, the images are gathered, no gradients are sent back
    across the boundary, and the result is pure model parallelism.

    combine, workers_per_host, bucket_bytes, statistics: as in ``sync_data``, for the layers below the dense layers.
    Batch normalisation between dense layers uses the statistics of all examples of a pass. Moving averages are updated
    once a step with the mean of the passes' statistics. With ``statistics=pooled``, such a layer requires one pass over
    the whole batch. The optimizer's ``clip_norm`` applies to all gradients of an update; if dense layers are updated
    several times in a step, their gradients are clipped separately.

    Bytes on the wire in a step, for values of b bytes and N examples. Across the boundary of F features: (K - 1) N F b
    forward and as much backward, in every scheme, if each worker has units of the first dense layer. From a dense layer
    of U units to the next: (K - 1) N U b each way. Loss, if each worker has units: (K - 1) N (3 b + 16) forward and
    (K - 1) N b backward for a softmax; logistic units need (K - 1) N b less each way
    (:class:`~runner.strategies.sharded.dense_loss.DenseLoss`). Loss of a regression of U numbers, if K divides N or U:
    (K - 1) N (2 b + U b / K) forward and nothing backward. Dropout between dense layers: 8 (K - 1) N, for the indices
    of examples. P parameters below the dense layers: 2 (K - 1) P b, with ``all_reduce`` K (K - 1) P b, and the bytes of
    these layers' statistics. Loss and metrics: (K - 1) b each. clip_norm with one update in a step: b to the first
    worker for each shard of a variable on another worker, and (K - 1) b back.
    """

    variants: ClassVar[tuple[Mapping[str, object], ...]] = tuple({"scheme": each} for each in SCHEMES)

    name: str = "hybrid"
    workers: SmallCount = 2
    scheme: str = "b"
    turns: bool = False
    fc_batch: Count | None = None
    dense_lr_factor: Positive = 1.0
    combine: str = "sharded_reduce"
    workers_per_host: SmallCount | None = None
    bucket_bytes: BytesOrZero = 1 << 20
    statistics: str = "shares"

    def __post_init__(self) -> None:
        require_one_of("parallelism.scheme", self.scheme, SCHEMES)
        require_one_of("parallelism.combine", self.combine, COMBINES)
        self._collective()
        require_one_of("parallelism.statistics", self.statistics, STATISTICS)
        if self.turns and self.scheme != "b":
            raise ConfigError(
                f"parallelism.turns=true with parallelism.scheme={self.scheme}: only in scheme b does one worker send "
                "the inputs of a pass; use scheme=b, or leave out turns"
            )

    @property
    def sums_by_all_reduce(self) -> bool:
        return self.combine == ALL_REDUCE

    def build(self, workload: Workload) -> Program:
        """Return the program. Raises ConfigError if the network or the batch cannot be split this way."""
        passes = dense_passes(self.scheme, workload.batch_size, self.workers, self.fc_batch)
        parts_of = splitting(workload, training=True)
        self._expect_statistics_of_batch(parts_of(workload.batch_size), len(passes))
        graph = Graph()
        devices = [worker_task(k) for k in range(self.workers)]
        replicas = [Replica(graph, workload, device=d, prefix=f"replica_{k}") for k, d in enumerate(devices)]
        bodies, normalised = self._add_bodies(replicas, parts_of)
        below = [replica.variables.trainable for replica in replicas]
        rows = rows_of(replicas, bodies, passes, turns=self.turns)
        dense = self._train_dense(replicas, parts_of, rows, backward=bool(below[0]))
        pairs = _differentiate_bodies(replicas, below, dense.boundary)
        columns = (dense.metrics(), pairs, normalised.parts, normalised.settled)
        computed = [Gradients(*own) for own in zip(*columns, strict=True)]
        graph = replicas[0].graph
        totals = exchange(graph, computed, devices, self._collective(), self.bucket_bytes)
        targets = _update(replicas, totals, dense)
        metrics = batch_metrics(replicas[0], computed)
        return program(graph, replicas, metrics=metrics, targets=targets, scored=_score(replicas))

    def _collective(self) -> Combine:
        return collective(self.combine, self.workers, self.workers_per_host)

    def _add_bodies(self, replicas: Sequence[Replica], parts_of: PartsOf) -> tuple[list[Body], Normalised]:
        bodies = [
            add_body(replica, parts_of(hi - lo), "train", (lo, hi), "train")
            for replica, (lo, hi) in zip(replicas, shares(replicas[0].workload.batch_size, self.workers), strict=True)
        ]
        normalised = STATISTICS[self.statistics](replicas, bodies)
        moved = normalised.moved
        return [replace(each, boundary=moved.get(each.boundary, each.boundary)) for each in bodies], normalised

    def _train_dense(
        self, replicas: Sequence[Replica], parts_of: PartsOf, passes: Sequence[Rows], *, backward: bool
    ) -> DenseTraining:
        """Add all passes of the dense layers, with an update after each if ``fc_batch`` is smaller than the batch."""
        updates = updates_per_batch(self.scheme, replicas[0].workload.batch_size, self.fc_batch)
        dense = DenseTraining(replicas, parts_of, updates=updates, lr_factor=self.dense_lr_factor, backward=backward)
        for number, rows in enumerate(passes):
            dense.add(rows, number)
            if updates > 1:
                dense.update(_clipped(replicas, dense.gradients()), number)
        return dense

    def _expect_statistics_of_batch(self, parts: Parts, passes: int) -> None:
        if self.statistics != "pooled" or passes == 1:
            return
        layers = [node.layer.name for node in parts.dense if node.op == "batch_norm" and node.layer is not None]
        if layers:
            whole = "scheme=a" if self.fc_batch is None else "scheme=a and fc_batch=null"
            raise ConfigError(
                f"parallelism.statistics=pooled with parallelism.scheme={self.scheme}: layer {layers[0]!r} is between "
                f"dense layers and would use separate statistics in each of {passes} passes; use {whole}, or "
                "statistics=shares"
            )


def _differentiate_bodies(
    replicas: Sequence[Replica], below: Sequence[Sequence[Variable]], boundary: Sequence[tuple[Tensor, Tensor]]
) -> list[list[tuple[Variable, Gradient]]]:
    """Add one backward pass below the boundary for all workers. boundary: pairs of a tensor and its gradient.

    There is one pass because, with pooled statistics, the outputs of one worker depend on the examples of all workers.
    """
    if not below[0]:
        return [[] for _ in replicas]
    ys, grad_ys = [tensor for tensor, _ in boundary], [gradient for _, gradient in boundary]
    return differentiate_together(replicas, below, "train", ys, grad_ys)[0]


def _update(replicas: Sequence[Replica], totals: Sequence[Gradients], dense: DenseTraining) -> list[str]:
    """Add the updates at the end of the step; return the assign nodes to run."""
    targets: list[str] = []
    if dense.updates > 1:
        for replica, own in zip(replicas, totals, strict=True):
            targets += replica.apply(own.gradients, own.state_updates)
        return [*targets, *dense.assign()]
    below, sharded = [own.gradients for own in totals], dense.gradients()
    # Gradients below the dense layers are equal on all workers, so the norm of all gradients counts them once.
    once = [gradient for own in (below[0], *sharded) for _, gradient in own]
    clipped = _clipped(replicas, [*below, *sharded], once)
    for replica, pairs, own in zip(replicas, clipped, totals, strict=False):
        targets += replica.assign(pairs, own.state_updates)
    dense.update(clipped[len(replicas) :], 0)
    return [*targets, *dense.assign()]


def _clipped(
    replicas: Sequence[Replica], pairs: Sequence[Pairs], counted: Sequence[Gradient] | None = None
) -> list[Pairs]:
    """Clip the gradients of all workers by their norm, which is computed on the first worker."""
    first = replicas[0]
    with first.within("update"):
        flat = iter(first.workload.optimizer.clipped(first.graph, list(chain(*pairs)), counted))
    return [[next(flat) for _ in own] for own in pairs]


def _score(replicas: Sequence[Replica]) -> list[Scored]:
    """Add the forward pass over an evaluation batch, with scheme ``a`` for the dense layers."""
    workload = replicas[0].workload
    parts_of = splitting(workload, training=False)
    bodies = [
        add_body(replica, parts_of(hi - lo), "test", (lo, hi), "eval")
        for replica, (lo, hi) in zip(replicas, shares(workload.eval_batch_size, len(replicas)), strict=True)
    ]
    (rows,) = rows_of(replicas, bodies, dense_passes("a", workload.eval_batch_size, len(replicas), None))
    added = add_dense(replicas, [replica.evaluated for replica in replicas], parts_of, rows, "eval")
    return [(added.outputs[k], body.batch) for k, body in enumerate(bodies)]
