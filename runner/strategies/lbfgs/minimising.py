"""The step driver of L-BFGS: it commands the stored vectors and requests evaluations of the batch."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.engine.compile.program import DriverSettings
from runner.engine.run.step_driver import Clients, StepDriver, drives, number_of
from runner.optimizers.lbfgs import Lbfgs
from runner.optimizers.quasi_newton import History, Iteration, iterate
from runner.optimizers.vector_machine import Add, Dot, Scale
from runner.strategies.lbfgs.vectors import FACTOR, PAIRS, PRODUCTS, RECALL, REMEMBER

Array = NDArray[Any]
Feeds = Mapping[str, Any]


@dataclass(frozen=True)
class Minimisation(DriverSettings):
    """Settings of :class:`LbfgsStepDriver` with a :class:`WholeBatch`.

    trained: names of the trained variables. dtype: of them and of fed factors. penalties: names of the fetches whose
    sum is the penalty.
    """

    optimizer: Lbfgs
    trained: Sequence[str]
    dtype: str
    penalties: Sequence[str]


@dataclass(frozen=True)
class Evaluation:
    """The objective at the present point: the batch's mean loss and accuracy, both (), and the penalty."""

    loss: Array
    accuracy: Array
    penalty: float = 0.0


class Evaluator(Protocol):
    """Evaluates batches and runs commands on the vectors."""

    def evaluate(self, step: int, learning_rate: Array) -> Evaluation:
        """Evaluate the batch of update ``step``, and store the objective's gradient."""
        ...

    def order(self, client: str, feeds: Feeds) -> Mapping[str, Array]:
        """Run a client of the vectors to its end; return its fetches."""
        ...

    def synchronize(self) -> None:
        """Wait until all running clients have ended."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of the evaluations since the last call."""
        ...

    def decisions(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return the decisions so far; see :class:`~runner.engine.run.step_driver.StepDriver`."""
        ...


class LbfgsStepDriver(StepDriver):
    """A step driver whose update is one iteration of L-BFGS on its batch.

    An update evaluates its batch at the present point and along a line. The history of earlier updates is kept in
    variables of the program, so that a resumed run continues from a checkpoint as the undisturbed run does.
    """

    def __init__(self, evaluator: Evaluator, settings: Minimisation) -> None:
        self._evaluator = evaluator
        self._settings = settings
        self._done: list[Iteration] = []

    def update(self, step: int, learning_rate: Array) -> Mapping[str, Array]:
        """Make an iteration; return loss and accuracy of its batch at the point where the iteration started."""
        settings, optimizer = self._settings, self._settings.optimizer
        vectors = _Commanded(self._evaluator, step, learning_rate, settings.trained, settings.dtype)
        history = self._recall()
        self._done.append(iterate(vectors, history, longest=optimizer.clip_norm, most=optimizer.max_evaluations))
        self._remember(history)
        first = vectors.evaluations[0]
        return {"loss": first.loss, "accuracy": first.accuracy}

    def synchronize(self) -> None:
        """Wait for late replicas."""
        self._evaluator.synchronize()

    def metrics(self) -> Mapping[str, float]:
        """Return the last objective and step length, the number of evaluations, and the evaluator's metrics."""
        done, self._done = self._done, []
        if not done:
            return {}
        return {
            "train/objective": done[-1].objective,
            "train/step_length": done[-1].step,
            "train/evaluations": float(sum(each.evaluations for each in done)),
            "train/pairs_kept": float(sum(each.kept for each in done)),
            **self._evaluator.metrics(),
        }

    def decisions(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return the decisions of the evaluator."""
        return self._evaluator.decisions()

    def _recall(self) -> History:
        found = self._evaluator.order(RECALL, {})
        curvatures, squares = found[PRODUCTS].tolist()
        return History(self._settings.optimizer.history, int(found[PAIRS]), curvatures, squares)

    def _remember(self, history: History) -> None:
        numbers = np.array([history.curvatures, history.squares])
        self._evaluator.order(REMEMBER, {PAIRS: np.asarray(history.pairs, "int64"), PRODUCTS: numbers})


class _Commanded:
    """The vectors of a program as a vector machine, for one iteration. evaluations: those made so far."""

    def __init__(self, evaluator: Evaluator, step: int, rate: Array, trained: Sequence[str], dtype: str) -> None:
        self.evaluations: list[Evaluation] = []
        self._evaluator = evaluator
        self._step = step
        self._rate = rate
        self._trained = trained
        self._dtype = dtype

    def dot(self, a: str, b: str) -> float:
        """Sum the products of all variables in their order, in 64 bits."""
        products = self._evaluator.order(str(Dot(a, b)), {})
        return reduce(operator.add, [float(products[name]) for name in self._trained])

    def scale(self, into: str, factor: float, a: str) -> None:
        self._evaluator.order(str(Scale(into, a)), self._factor(factor))

    def add(self, into: str, a: str, factor: float, b: str) -> None:
        self._evaluator.order(str(Add(into, a, b)), self._factor(factor))

    def evaluate(self) -> float:
        found = self._evaluator.evaluate(self._step, self._rate)
        self.evaluations.append(found)
        return float(found.loss) + found.penalty

    def _factor(self, value: float) -> Feeds:
        return {FACTOR: np.asarray(value, self._dtype)}


class WholeBatch:
    """An evaluator that computes the whole batch with the client ``train``."""

    def __init__(self, clients: Clients, penalties: Sequence[str]) -> None:
        """penalties: names of the fetches of ``train`` whose sum is the penalty."""
        self._clients = clients
        self._penalties = penalties

    def evaluate(self, step: int, learning_rate: Array) -> Evaluation:
        """Run ``train``; see :class:`Evaluator`."""
        feeds = {"step": number_of(step), "learning_rate": learning_rate}
        found = self._clients.run("train", step=step, feeds=feeds)
        return Evaluation(found["loss"], found["accuracy"], penalty_of(found, self._penalties))

    def order(self, client: str, feeds: Feeds) -> Mapping[str, Array]:
        """Run the client; see :class:`Evaluator`."""
        return self._clients.run(client, feeds=feeds)

    def synchronize(self) -> None:
        """Do nothing, because every client has ended."""

    def metrics(self) -> Mapping[str, float]:
        """Return no further metrics."""
        return {}

    def decisions(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return no decisions, because the configuration determines the run."""
        return {}


@drives(Minimisation)
def _whole_batch(clients: Clients, settings: Minimisation) -> LbfgsStepDriver:
    return LbfgsStepDriver(WholeBatch(clients, settings.penalties), settings)


def penalty_of(fetched: Mapping[str, Array], penalties: Sequence[str]) -> float:
    """Return the penalty of an objective: the sum of its parts in their order, in 64 bits."""
    return reduce(operator.add, [float(fetched[name]) for name in penalties], 0.0)
