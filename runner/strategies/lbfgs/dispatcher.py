"""The coordinator of Sandblaster: assigns portions of a batch to replicas and commands the servers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.run.step_driver import Clients, Finished, drives, number_of
from runner.strategies.clients import numbered
from runner.strategies.lbfgs.minimising import Evaluation, Feeds, LbfgsStepDriver, Minimisation, penalty_of
from runner.strategies.lbfgs.portions import Portions

Array = NDArray[Any]

GATHER = "gather"
"""The client that sums the gradients of all portions, on the servers."""


def fetch_name(worker: int) -> str:
    """Return the name of the client that copies the parameters to a replica."""
    return numbered("fetch", worker)


def compute_name(worker: int, size: int) -> str:
    """Return the name of the client that computes a portion of ``size`` examples and sends its gradient to servers."""
    return numbered("compute", worker, size)


def keep_name(worker: int, portion: int) -> str:
    """Return the name of the client that stores a replica's last gradient as that of a portion, on the servers."""
    return numbered("keep", worker, portion)


@dataclass(frozen=True)
class PortionSizes:
    """The number of replicas, and the examples of each portion; portions have at most two different sizes."""

    workers: int
    sizes: Sequence[int]

    @cached_property
    def worker_of(self) -> Mapping[str, int]:
        """Client of a replica -> number of the replica."""
        named = {fetch_name(worker): worker for worker in range(self.workers)}
        for size in set(self.sizes):
            named.update({compute_name(worker, size): worker for worker in range(self.workers)})
        return named


@dataclass(frozen=True)
class PortionedMinimisation(Minimisation):
    """Settings of :class:`~runner.strategies.lbfgs.minimising.LbfgsStepDriver` with a :class:`Dispatcher`."""

    cut: PortionSizes


@dataclass
class _Batch:
    """One evaluation of a batch.

    scores: finished portion -> loss and accuracy. by: finished portion -> the replica that finished it first. fetches,
    computed: number of fetches of the parameters, and of computed portions.
    """

    portions: Portions
    scores: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    by: dict[int, int] = field(default_factory=dict)
    fetches: int = 0
    computed: int = 0


@dataclass(frozen=True)
class _Busy:
    """The work of a busy replica for an evaluation: it computes the portion, or fetches the parameters for it."""

    batch: _Batch
    portion: int
    computes: bool


class Dispatcher:
    """An :class:`~runner.strategies.lbfgs.minimising.Evaluator` whose batches are computed by replicas in portions.

    A replica fetches the parameters once per evaluation, before its first portion. The first gradient of each portion
    to arrive is kept. The gradients are summed in the order of the portions, so that the sum does not depend on the
    assignment of portions or on the order of arrival. A late replica finishes its portion during later work, and its
    gradient is dropped.

    Servers start clients without open inputs in the order of their launches. Therefore a replica's gradient is not
    overwritten before it is kept, because its next portion is launched after the client that keeps it; and all
    gradients are kept before :data:`GATHER` sums them.
    """

    def __init__(self, clients: Clients, cut: PortionSizes, penalties: Sequence[str]) -> None:
        """penalties: names of the fetches of :data:`GATHER` whose sum is the penalty."""
        self._clients = clients
        self._cut = cut
        self._penalties = penalties
        self._step = 0
        self._batch: _Batch | None = None
        self._fetched: dict[int, _Batch] = {}
        self._busy: dict[int, _Busy] = {}
        self._keeping: set[str] = set()
        self._evaluations: list[dict[str, Any]] = []
        self._reported = 0

    def evaluate(self, step: int, learning_rate: Array) -> Evaluation:
        """Compute every portion at least once; see :class:`~runner.strategies.lbfgs.minimising.Evaluator`."""
        self._step = step
        batch = self._batch = _Batch(Portions(len(self._cut.sizes), self._cut.workers))
        for worker in range(self._cut.workers):
            self._assign(worker, batch)
        while not batch.portions.complete:
            self._take(self._clients.finished())
        self._batch = None
        gathered = self.order(GATHER, {})
        self._note(batch)
        # In the order of the portions and in their dtype, in which the servers sum the gradients.
        losses, accuracies = zip(*(batch.scores[portion] for portion in sorted(batch.scores)), strict=True)
        return Evaluation(reduce(np.add, losses), reduce(np.add, accuracies), penalty_of(gathered, self._penalties))

    def order(self, client: str, feeds: Feeds) -> Mapping[str, Array]:
        """Launch a client and wait for its end; handle other clients that end before."""
        self._clients.launch(client, step=self._step, feeds=feeds)
        while (finished := self._clients.finished()).client != client:
            self._take(finished)
        return finished.fetches

    def synchronize(self) -> None:
        """Wait for late replicas."""
        while self._busy or self._keeping:
            self._take(self._clients.finished())

    def metrics(self) -> Mapping[str, float]:
        """Return how many portions were computed again since the last call."""
        recent, self._reported = self._evaluations[self._reported :], len(self._evaluations)
        return {"comm/duplicated_portions": float(sum(each["duplicated"] for each in recent))}

    def decisions(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return for every evaluation: step, the first replica to finish each portion, fetches, repeated portions."""
        return {"evaluations": list(self._evaluations)}

    def _assign(self, worker: int, batch: _Batch) -> None:
        """Give a free replica its next portion, if there is one."""
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
            self._clients.launch(fetch_name(worker), step=self._step)

    def _compute(self, worker: int, batch: _Batch, portion: int) -> None:
        sizes = self._cut.sizes
        batch.computed += 1
        self._busy[worker] = _Busy(batch, portion, computes=True)
        name = compute_name(worker, sizes[portion])
        self._clients.launch(name, step=self._step * len(sizes) + portion, feeds={"step": number_of(self._step)})

    def _take(self, finished: Finished) -> None:
        """Handle the end of a client of a replica, or of a client that keeps a gradient."""
        if finished.client in self._keeping:
            self._keeping.remove(finished.client)
            return
        worker = self._cut.worker_of[finished.client]
        busy = self._busy.pop(worker)
        batch, portion = busy.batch, busy.portion
        if busy.computes and batch.portions.finish(portion):
            batch.scores[portion] = finished.fetches["loss"], finished.fetches["accuracy"]
            batch.by[portion] = worker
            self._keeping.add(keep_name(worker, portion))
            self._clients.launch(keep_name(worker, portion), step=self._step)
        if not busy.computes:
            self._fetched[worker] = batch
            if batch.portions.is_open(portion):
                self._compute(worker, batch, portion)
        if self._batch is not None:
            self._assign(worker, self._batch)

    def _note(self, batch: _Batch) -> None:
        """Record an evaluation that has ended."""
        by = [batch.by[portion] for portion in sorted(batch.by)]
        counts = {"fetches": batch.fetches, "duplicated": batch.computed - len(by)}
        self._evaluations.append({"step": self._step, "by": by, **counts})


@drives(PortionedMinimisation)
def _portioned(clients: Clients, settings: PortionedMinimisation) -> LbfgsStepDriver:
    return LbfgsStepDriver(Dispatcher(clients, settings.cut, settings.penalties), settings)
