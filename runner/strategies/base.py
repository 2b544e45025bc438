"""The contract of a strategy: what every value of the ``parallelism`` axis states about itself.

A strategy is a function from a task to a :class:`Program`: it decides how many copies of the network there are,
on which devices their nodes are, and how their gradients are summed. It sees layer stamps, never models. Everything
that configuration, training and commands need to know about a strategy they ask through :class:`Strategy`, never by
its name or type, so that a strategy of a plugin can do what a built-in one can.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from runner.bounds import SmallCount
from runner.engine.compile.program import Program
from runner.engine.graph.network import NetworkFunction
from runner.engine.graph.tensor import state_dtype
from runner.errors import ConfigError
from runner.optimizers.base import Optimizer


@dataclass(frozen=True)
class Task:
    """The training task, free of any decision about devices.

    example_shape: (C, H, W). dtype: of activations. batch_size: examples of one update over all
    workers. microbatches: parts a batch is computed in, one after the other, before its gradients are summed.
    """

    network: NetworkFunction
    optimizer: Optimizer
    example_shape: tuple[int, ...]
    dtype: str
    seed: int
    batch_size: int
    eval_batch_size: int
    microbatches: int = 1

    @property
    def state_dtype(self) -> str:
        """The dtype of variables, gradients, statistics and losses, and of fed values."""
        return state_dtype(self.dtype)


@dataclass(frozen=True)
class TrainingFacts:
    """The facts of a configuration that a strategy checks itself against.

    batch_size, eval_batch_size: examples over all workers. emulated: delays of links are emulated. compression: of
    tensors between devices, "none" for none. train_examples, total_steps: None while the length of the training split
    and of the run is not known.
    """

    optimizer: Optimizer
    batch_size: int
    eval_batch_size: int
    microbatches: int
    emulated: bool
    compression: str
    train_examples: int | None = None
    total_steps: int | None = None


@dataclass(frozen=True)
class Processes:
    """The processes of a run by role: workers compute, servers keep variables."""

    workers: int
    servers: int = 0


@dataclass(frozen=True)
class Race:
    """A race between processes that decides the values of a run, and the record from which the run can be repeated.

    racers: who races, for messages. decisions: name of the record that
    :meth:`~runner.engine.run.step_driver.StepDriver.decisions` returns. It holds what counted in each update,
    goes on when a run is resumed, and repeats the run on the processes it had. None: the record is the order in which
    clients ended. It is of a single start of a run and repeats the run in one process. decided: something other than
    timing decides the race: a virtual clock or a record.
    """

    racers: str
    decisions: str | None = None
    decided: bool = False


@dataclass(frozen=True)
class LayerPlacement:
    """How the layers of a program are placed whose strategy leaves their devices open.

    costs: ``trace_summary.json`` of measured seconds, None for formulas. stored: ``placement.json`` of an earlier run,
    None to search. rivals: other strategies whose step time is predicted for comparison: name -> settings of the
    ``parallelism`` group. measured_steps: steps of the run and of its rivals that are measured before training.
    """

    costs: str | None = None
    stored: str | None = None
    rivals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    measured_steps: int = 0


@dataclass
class Strategy(ABC):
    """Base of all strategies; the fields are their configuration.

    splits_batch: every worker computes a share of each batch. line_search: an update may evaluate its batch several
    times, as L-BFGS does. order_keys: keys that decide in which order clients run and not what they compute; runs that
    differ in nothing else can repeat each other.
    """

    name: str = ""
    workers: SmallCount = 1

    splits_batch: ClassVar[bool] = True
    line_search: ClassVar[bool] = False
    order_keys: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def build(self, task: Task) -> Program:
        """Return the program that trains ``task`` this way.

        Raises ConfigError for a network, batch or optimizer that the strategy cannot train.
        """

    @property
    def processes(self) -> Processes:
        """The processes the strategy needs."""
        return Processes(self.workers)

    @property
    def worker_keys(self) -> str:
        """The settings that decide the number of worker processes, for messages."""
        return f"parallelism.workers={self.workers}"

    @property
    def sums_by_all_reduce(self) -> bool:
        """Whether the graph sums gradients by ``all_reduce`` ops, which a library between GPUs can carry out."""
        return False

    @property
    def race(self) -> Race | None:
        """The race that decides the values of a run; None if the configuration decides them."""
        return None

    @property
    def replayed(self) -> str | None:
        """Path of the record that this run repeats, by the key ``replay``; None for a run that repeats no other."""
        return None

    @property
    def layer_placement(self) -> LayerPlacement | None:
        """How the layers are placed; None if ``build`` decides where every node is."""
        return None

    def replaying(self, record: str) -> Self:
        """Return this strategy with the key ``replay``, so that it repeats a record of its :attr:`race`."""
        raise NotImplementedError(f"parallelism={self.name} states a race, but not how its record is repeated")

    def examples_per_update(self, batch_size: int) -> int:
        """Examples that are given out for one update; more than ``batch_size`` if some shares may not count."""
        return batch_size

    def faults(self, facts: TrainingFacts) -> Iterator[str]:
        """Yield a message for each setting that contradicts the facts, with what was expected and what to do."""
        if self.splits_batch:
            yield from self._faults_of_shares(facts)
        if facts.optimizer.line_search and not self.line_search:
            yield (
                f"optimizer={facts.optimizer.name} with parallelism={self.name}: only single and sandblaster evaluate "
                "a batch along a line; use one of them, or another optimizer"
            )

    def _faults_of_shares(self, facts: TrainingFacts) -> Iterator[str]:
        for key, size, workers, keys in (
            ("batch_size", facts.batch_size, self.workers, f"parallelism.workers={self.workers}"),
            ("eval_batch_size", facts.eval_batch_size, self.processes.workers, self.worker_keys),
        ):
            if size < workers:
                yield (
                    f"train.{key}={size} is smaller than {keys}: every worker needs "
                    f"an example of each batch; use a batch of {workers} or more, or fewer workers"
                )
        if facts.microbatches > 1:
            yield (
                f"train.microbatches={facts.microbatches} with parallelism={self.name}: the shares of its "
                "workers are its microbatches; use parallelism=single, or train.microbatches=1"
            )


def require(holds: bool, key: str, value: object, expected: str) -> None:
    """Raise ConfigError naming the key of the ``parallelism`` group unless the condition holds."""
    if not holds:
        raise ConfigError(f"parallelism.{key}={value}: expected {expected}")


def require_one_of(key: str, value: str, options: Iterable[str]) -> None:
    """Raise ConfigError listing the options unless the value is one of them."""
    known = sorted(options)
    require(value in known, key, repr(value), f"one of {', '.join(known)}")
