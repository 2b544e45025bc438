"""The coordinator of Sandblaster: keeps model replicas busy with portions of a batch, and orders the servers about."""

from __future__ import annotations

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
"""The client that adds up the gradients of all portions, on the servers."""


def fetch_name(worker: int) -> str:
    """The client that brings the parameters to a replica."""
    return numbered("fetch", worker)


def compute_name(worker: int, size: int) -> str:
    """The client that computes a portion, and brings its gradient to the servers. size: examples of the portion."""
    return numbered("compute", worker, size)


def keep_name(worker: int, portion: int) -> str:
    """The client that makes the gradient that came last from a replica, on the servers, that of a portion."""
    return numbered("keep", worker, portion)


@dataclass(frozen=True)
class PortionSizes:
    """How many replicas there are, and how many examples each portion has: one number or two."""

    workers: int
    sizes: Sequence[int]

    @cached_property
    def worker_of(self) -> Mapping[str, int]:
        """Client of a replica -> its number."""
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

    scores: loss and accuracy, by: who was first; of the portions that are finished. fetches, computed: how often
    replicas fetched the parameters, and computed a portion.
    """

    portions: Portions
    scores: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    by: dict[int, int] = field(default_factory=dict)
    fetches: int = 0
    computed: int = 0


@dataclass(frozen=True)
class _Busy:
    """What a replica does, and for which evaluation. computes: the portion; or else fetches the parameters for it."""

    batch: _Batch
    portion: int
    computes: bool


class Dispatcher:
    """An evaluator (lbfgs/minimising.py) whose batches are computed by replicas, portion by portion.

    A replica fetches the parameters once in an evaluation, before its first portion. The first gradient of a portion
    that comes is kept, and all are added up in the order of the portions: the sum does not depend on who computed what,
    nor on when it came. A replica that is late goes on beside what follows until it is done, and what it has sent is
    not kept.

    Servers begin what waits for nothing in the order of its launches. So what a replica sent last stands there until it
    is kept, because its next portion is launched behind the order to keep it; and all that has to be kept has been when
    :data:`GATHER` adds it up.
    """

    def __init__(self, clients: Clients, cut: PortionSizes, penalties: Sequence[str]) -> None:
        """penalties: which fetches of :data:`GATHER` add up to the penalty."""
        self._clients = clients
        self._cut = cut
        self._penalties = penalties
        self._step = 0
        self._batch: _Batch | None = None
        self._fetched: dict[int, _Batch] = {}
        self._busy: dict[int, _Busy] = {}
        self._keeping: set[str] = set()
        self._evaluations: list[dict[str, Any]] = []
        self._told = 0

    def evaluate(self, step: int, learning_rate: Array) -> Evaluation:
        """Have every portion computed at least once; see :class:`~runner.strategies.lbfgs.minimising.Evaluator`."""
        self._step = step
        batch = self._batch = _Batch(Portions(len(self._cut.sizes), self._cut.workers))
        for worker in range(self._cut.workers):
            self._employ(worker, batch)
        while not batch.portions.complete:
            self._take(self._clients.finished())
        self._batch = None
        gathered = self.order(GATHER, {})
        self._note(batch)
        # In the order of the portions and in their dtype, as the servers add up gradients.
        losses, accuracies = zip(*(batch.scores[portion] for portion in sorted(batch.scores)), strict=True)
        return Evaluation(reduce(np.add, losses), reduce(np.add, accuracies), penalty_of(gathered, self._penalties))

    def order(self, client: str, feeds: Feeds) -> Mapping[str, Array]:
        """Launch a client and wait for its end, whatever else ends before."""
        self._clients.launch(client, step=self._step, feeds=feeds)
        while (finished := self._clients.finished()).client != client:
            self._take(finished)
        return finished.fetches

    def synchronize(self) -> None:
        """Let replicas that are late come to their end."""
        while self._busy or self._keeping:
            self._take(self._clients.finished())

    def metrics(self) -> Mapping[str, float]:
        """How often portions were computed beside the first time since the last call."""
        news, self._told = self._evaluations[self._told :], len(self._evaluations)
        return {"comm/duplicated_portions": float(sum(each["duplicated"] for each in news))}

    def decisions(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Of every evaluation: its step, who finished each portion first, fetches, and computations beside those."""
        return {"evaluations": list(self._evaluations)}

    def _employ(self, worker: int, batch: _Batch) -> None:
        """Give a replica that is free something to do, where there is anything."""
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
        """Act on the end of a client that nobody waits for by its name."""
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
            self._employ(worker, self._batch)

    def _note(self, batch: _Batch) -> None:
        """Record an evaluation that has ended."""
        by = [batch.by[portion] for portion in sorted(batch.by)]
        counts = {"fetches": batch.fetches, "duplicated": batch.computed - len(by)}
        self._evaluations.append({"step": self._step, "by": by, **counts})


@drives(PortionedMinimisation)
def _portioned(clients: Clients, settings: PortionedMinimisation) -> LbfgsStepDriver:
    return LbfgsStepDriver(Dispatcher(clients, settings.cut, settings.penalties), settings)
