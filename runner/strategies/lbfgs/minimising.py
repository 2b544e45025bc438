"""The step driver of L-BFGS: it runs clients that compute with stored vectors and clients that evaluate the batch."""

import operator
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.compile.program import TRAIN, DriverSettings
from runner.engine.graph.network import LOSS
from runner.engine.run.session import scalar
from runner.engine.run.step_driver import Clients, StepDriver, drives, number_of
from runner.optimizers.lbfgs import DIRECTION, GRADIENT, Add, Dot, History, Iteration, Lbfgs, Scale, iterate
from runner.strategies.lbfgs.vectors import FACTOR, PAIRS, PRODUCTS, RECALL, REMEMBER

Array = NDArray[Any]
Feeds = Mapping[str, Any]


@dataclass(frozen=True)
class Minimisation(DriverSettings):
    """Settings of :class:`WholeBatch`.

    trained: names of the trained variables. dtype: the dtype of these variables and of fed factors. penalties: names of
    the fetches whose sum is the penalty of the weight decay.
    """

    optimizer: Lbfgs
    trained: Sequence[str]
    dtype: str
    penalties: Sequence[str]


@dataclass(frozen=True)
class Evaluation:
    """The results at the current point: the batch's mean loss and metrics, scalars, and the weight decay's penalty."""

    metrics: Mapping[str, Array]
    penalty: float


class LbfgsStepDriver(StepDriver):
    """A step driver whose update is one iteration of L-BFGS on its batch; subclasses define the evaluation of a batch.

    An update evaluates its batch at the current point and along a line. The history of earlier updates is kept in
    variables of the program, so that a resumed run equals the uninterrupted run. The driver is the
    :class:`~runner.optimizers.lbfgs.VectorMachine` of the iteration: it computes with the program's vectors.
    """

    def __init__(self, clients: Clients, settings: Minimisation) -> None:
        self._clients = clients
        self._settings = settings
        self._step = 0
        self._learning_rate: Any = None
        self._evaluations: list[Evaluation] = []
        self._done: list[Iteration] = []

    @abstractmethod
    def compute(self) -> Evaluation:
        """Evaluate the batch of the current update, and store the objective's gradient."""

    @abstractmethod
    def order(self, client: str, feeds: Feeds) -> Mapping[str, Array]:
        """Run a client that computes with the vectors, wait for its end and return its fetches."""

    def update(self, step: int, learning_rate: Array) -> Mapping[str, Array]:
        """Run one iteration; return the loss and metrics of its batch at the point where the iteration started."""
        self._step, self._learning_rate, self._evaluations = step, learning_rate, []
        optimizer, machine = self._settings.optimizer, self if self._clients.computes else TypicalNumbers(self)
        recalled = self.order(RECALL, {})
        history = machine.history(optimizer.history, int(recalled[PAIRS]), recalled[PRODUCTS].tolist())
        self._done.append(iterate(machine, history, longest=optimizer.clip_norm, most=optimizer.max_evaluations))
        products = np.array([history.curvatures, history.squares])
        self.order(REMEMBER, {PAIRS: np.asarray(history.pairs, "int64"), PRODUCTS: products})
        return self._evaluations[0].metrics

    @property
    def is_synchronized(self) -> bool:
        """True, because no client changes saved variables between two updates."""
        return True

    @property
    def passes(self) -> int:
        """The number of evaluations in the newest iteration."""
        return len(self._evaluations)

    def metrics(self) -> Mapping[str, float]:
        """Return the last objective and step length, and counts of evaluations and kept pairs since the last call."""
        done, self._done = self._done, []
        if not done:
            return {}
        return {
            "train/objective": done[-1].objective,
            "train/step_length": done[-1].step,
            "train/evaluations": float(sum(each.evaluations for each in done)),
            "train/pairs_kept": float(sum(each.kept for each in done)),
        }

    def history(self, size: int, pairs: int, products: Sequence[list[float]]) -> History:
        """Return the history from its stored number of pairs and their products."""
        return History(size, pairs, *products)

    def dot(self, a: str, b: str) -> float:
        """Return the dot product of two vectors, summed over the variables in order, in float64."""
        products = self.order(str(Dot(a, b)), {})
        return reduce(operator.add, [float(products[name]) for name in self._settings.trained])

    def scale(self, into: str, factor: float, a: str) -> None:
        self.order(str(Scale(into, a)), self._factor(factor))

    def add(self, into: str, a: str, factor: float, b: str) -> None:
        self.order(str(Add(into, a, b)), self._factor(factor))

    def evaluate(self) -> float:
        """Evaluate the batch; return the objective: the loss plus the penalty, added in float64."""
        self._evaluations.append(self.compute())
        return float(self._evaluations[-1].metrics[LOSS]) + self._evaluations[-1].penalty

    def _factor(self, value: float) -> Feeds:
        return {FACTOR: scalar(value, self._settings.dtype)}

    def _penalty(self, fetched: Mapping[str, Array]) -> float:
        """Return the penalty: the sum of its fetched parts in their order, in float64."""
        return reduce(operator.add, [float(fetched[name]) for name in self._settings.penalties], 0.0)


class TypicalNumbers:
    """The machine of a simulation, which has no numbers: an iteration with a full history that takes its first step.

    Every command runs on ``driver``; the results are those of a slope that is 0 after the first step of a line search.
    """

    def __init__(self, driver: LbfgsStepDriver) -> None:
        self._driver = driver
        self._evaluations = 0
        self.scale, self.add = driver.scale, driver.add

    def history(self, size: int, pairs: int, products: Sequence[list[float]]) -> History:
        """Return a full history."""
        return History(size, size, [1.0] * size, [1.0] * size)

    def dot(self, a: str, b: str) -> float:
        self._driver.dot(a, b)
        if (a, b) != (GRADIENT, DIRECTION):
            return 1.0
        return -1.0 if self._evaluations == 1 else 0.0

    def evaluate(self) -> float:
        """Evaluate the batch; return an objective that falls from 1 to 0."""
        self._driver.evaluate()
        self._evaluations += 1
        return 1.0 if self._evaluations == 1 else 0.0


@drives(Minimisation)
class WholeBatch(LbfgsStepDriver):
    """A step driver that evaluates the whole batch with the client ``train``."""

    def compute(self) -> Evaluation:
        feeds = {"step": number_of(self._step), "learning_rate": self._learning_rate}
        found = self._clients.run(TRAIN, step=self._step, feeds=feeds)
        metrics = {name: each for name, each in found.items() if name not in self._settings.penalties}
        return Evaluation(metrics, self._penalty(found))

    def order(self, client: str, feeds: Feeds) -> Mapping[str, Array]:
        return self._clients.run(client, feeds=feeds)

    def synchronize(self) -> None:
        """Return immediately, because every client has ended."""
