"""The coordinator of Sandblaster: assigns portions of a batch to replicas and commands the servers."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.run.step_driver import Clients, Finished, drives, number_of
from runner.strategies.clients import client_name, numbers_of
from runner.strategies.lbfgs.minimising import Evaluation, Feeds, LbfgsStepDriver, Minimisation
from runner.strategies.replica import shares

Array = NDArray[Any]

GATHER = "gather"
"""Name of the client that sums the gradients of all portions on the servers."""


class Portions:
    """The portions of one evaluation, numbered from 0, and their assignment (Dean et al. 2012, section 4.2).

    The assignment depends only on the order of the method calls. Every worker has a range of consecutive portions and
    computes them in order. The range is the same in each evaluation, so that its examples may still be cached. A worker
    that has finished its range gets the last portion of the longest remaining range. If all portions are assigned, the
    worker repeats the unfinished portion that the fewest workers compute or, of several, the one assigned first. A
    worker requests a portion only after it has finished its previous one, so no worker repeats its own portion.
    """

    def __init__(self, count: int, workers: int) -> None:
        self._waiting = [deque(range(*share)) for share in shares(count, workers)]
        self._busy: dict[int, int] = {}
        self._left = set(range(count))

    @property
    def complete(self) -> bool:
        """Whether every portion is finished."""
        return not self._left

    def is_open(self, portion: int) -> bool:
        """Return whether a portion is not finished yet."""
        return portion in self._left

    def give(self, worker: int) -> int | None:
        """Return the next portion for a free worker; None if all are finished."""
        if self._waiting[worker]:
            portion: int | None = self._waiting[worker].popleft()
        else:
            fullest = max(self._waiting, key=len)
            portion = fullest.pop() if fullest else self._again()
        if portion is not None:
            self._busy[portion] = self._busy.get(portion, 0) + 1
        return portion

    def finish(self, portion: int) -> bool:
        """Mark a portion as finished; return whether it was unfinished before."""
        if not self.is_open(portion):
            return False
        self._left.remove(portion)
        del self._busy[portion]
        return True

    def _again(self) -> int | None:
        return min(self._busy, key=self._busy.__getitem__, default=None)


@dataclass(frozen=True)
class PortionedMinimisation(Minimisation):
    """Settings of :class:`Dispatcher`.

    workers: number of replicas. sizes: number of examples in each portion; there are at most two different sizes.
    """

    workers: int
    sizes: Sequence[int]


@dataclass
class _Batch:
    """One evaluation of a batch.

    scores: finished portion -> loss and metrics. by: finished portion -> the replica that finished it first. fetches:
    number of started fetches of the parameters. computed: number of started computations of portions.
    """

    portions: Portions
    scores: dict[int, Mapping[str, Array]] = field(default_factory=dict)
    by: dict[int, int] = field(default_factory=dict)
    fetches: int = 0
    computed: int = 0


@dataclass(frozen=True)
class _Busy:
    """The work of a busy replica for an evaluation: computing the portion, or first fetching the parameters."""

    batch: _Batch
    portion: int
    computes: bool


@drives(PortionedMinimisation)
class Dispatcher(LbfgsStepDriver):
    """The step driver of Sandblaster, whose replicas compute the batch in portions.

    Clients of replica k: ``fetch_k`` copies the parameters to the replica, ``compute_k_n`` computes a portion of n
    examples and sends its gradient to the servers, ``keep_k_p`` stores this gradient as the gradient of portion p.

    A replica fetches the parameters once per evaluation, before its first portion. The first gradient of each portion
    to arrive is kept. The gradients are summed in the order of the portions, so that the sum does not depend on the
    assignment of portions or on the order of arrival. A replica is late if another replica has finished the same
    portion first. The late replica continues while later clients run, and its gradient is dropped.

    A server begins clients in the order in which they are launched, unless they wait for input. A replica's next client
    is launched after the client that stores its last gradient; :data:`GATHER` is launched after all storing clients.
    Therefore a gradient is stored before the next gradient overwrites it and before the gradients are summed.
    """

    def __init__(self, clients: Clients, settings: PortionedMinimisation) -> None:
        super().__init__(clients, settings)
        self._workers = settings.workers
        self._sizes = settings.sizes
        self._batch: _Batch | None = None
        self._fetched: dict[int, _Batch] = {}
        self._busy: dict[int, _Busy] = {}
        self._keeping: set[str] = set()
        self._records: list[dict[str, Any]] = []
        self._reported = 0

    def compute(self) -> Evaluation:
        """Compute every portion at least once; see :class:`~runner.strategies.lbfgs.minimising.LbfgsStepDriver`."""
        batch = self._batch = _Batch(Portions(len(self._sizes), self._workers))
        for worker in range(self._workers):
            self._assign(worker, batch)
        while not batch.portions.complete:
            self._take(self._clients.finished())
        self._batch = None
        gathered = self.order(GATHER, {})
        by = [batch.by[portion] for portion in sorted(batch.by)]
        counts = {"fetches": batch.fetches, "duplicated": batch.computed - len(by)}
        self._records.append({"step": self._step, "by": by, **counts})
        # Scores are summed in the order and the dtype in which the servers sum the gradients.
        scores = [batch.scores[portion] for portion in sorted(batch.scores)]
        metrics = {name: reduce(np.add, [each[name] for each in scores]) for name in scores[0]}
        return Evaluation(metrics, self._penalty(gathered))

    def order(self, client: str, feeds: Feeds) -> Mapping[str, Array]:
        """Launch a client and wait for its end; handle other clients that end earlier."""
        self._clients.launch(client, step=self._step, feeds=feeds)
        while (finished := self._clients.finished()).client != client:
            self._take(finished)
        return finished.fetches

    def synchronize(self) -> None:
        """Wait for late replicas."""
        while self._busy or self._keeping:
            self._take(self._clients.finished())

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of the iterations since the last call, and the number of repeated portions."""
        found, recent = super().metrics(), self._records[self._reported :]
        self._reported = len(self._records)
        return {**found, "comm/duplicated_portions": float(sum(each["duplicated"] for each in recent))} if found else {}

    def decisions(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return for each evaluation: step, first replica to finish each portion, numbers of fetches and repeats."""
        return {"evaluations": list(self._records)}

    def _assign(self, worker: int, batch: _Batch) -> None:
        """Give a replica its next portion, if the replica is free and a portion is left."""
        if worker in self._busy:
            return
        portion = batch.portions.give(worker)
        if portion is None:
            return
        if self._fetched.get(worker) is batch:
            self._compute(worker, batch, portion)
        else:
            batch.fetches += 1
            self._busy[worker] = _Busy(batch, portion, computes=False)
            self._clients.launch(client_name("fetch", worker), step=self._step)

    def _compute(self, worker: int, batch: _Batch, portion: int) -> None:
        batch.computed += 1
        self._busy[worker] = _Busy(batch, portion, computes=True)
        name, step = client_name("compute", worker, self._sizes[portion]), self._step * len(self._sizes) + portion
        self._clients.launch(name, step=step, feeds={"step": number_of(self._step)})

    def _take(self, finished: Finished) -> None:
        """Handle the end of a replica's client, or of a client that stores a gradient."""
        if finished.client in self._keeping:
            self._keeping.remove(finished.client)
            return
        worker = numbers_of(finished.client)[0]
        busy = self._busy.pop(worker)
        batch, portion = busy.batch, busy.portion
        if busy.computes and batch.portions.finish(portion):
            batch.scores[portion] = finished.fetches
            batch.by[portion] = worker
            keep = client_name("keep", worker, portion)
            self._keeping.add(keep)
            self._clients.launch(keep, step=self._step)
        if not busy.computes:
            self._fetched[worker] = batch
            if batch.portions.is_open(portion):
                self._compute(worker, batch, portion)
        if self._batch is not None:
            self._assign(worker, self._batch)
