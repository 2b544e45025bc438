"""The interface of a strategy, which every option of ``parallelism`` implements.

A strategy turns a workload into a :class:`Program`: it chooses the number of copies of the network, the devices of the
nodes, and the way in which gradients are summed. A strategy reads the layers that are recorded on the nodes, and never
reads a model. The configuration, training and commands use a strategy only through :class:`Strategy`, never by its name
or type, so a plugin's strategy can use the same features as a built-in one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from runner.bounds import SmallCount
from runner.engine.compile.program import Program
from runner.engine.graph import NetworkFunction, state_dtype
from runner.fields import Field
from runner.optimizers.base import Optimizer


@dataclass(frozen=True)
class Workload:
    """A network to train, its optimizer and the sizes of batches, without any decision about devices.

    fields: the fields of an example that the network reads, by name; every example also has an index. dtype: the
    dtype of activations. batch_size: examples of one update, over all workers. microbatches: number of parts of a
    batch, computed one after the other before their gradients are summed. recompute: kinds and shell patterns of names
    of the layers that the backward pass may recompute (:mod:`~runner.engine.compile.passes.recomputation`).
    """

    network: NetworkFunction
    optimizer: Optimizer
    fields: Mapping[str, Field]
    dtype: str
    seed: int
    batch_size: int
    eval_batch_size: int
    microbatches: int = 1
    recompute: Sequence[str] = ()

    @property
    def specs(self) -> dict[str, Field]:
        """Name -> spec of each fed value: the fields (floats in ``state_dtype``), "index", and "mask" (0: padding)."""
        fed = {name: Field(each.shape, each.dtype or self.state_dtype) for name, each in self.fields.items()}
        return {**fed, "index": Field((), "int64"), "mask": Field((), self.state_dtype)}

    @property
    def state_dtype(self) -> str:
        """The dtype of variables, gradients, statistics and losses, and of fed values."""
        return state_dtype(self.dtype)


@dataclass(frozen=True)
class TrainingFacts:
    """The facts of a configuration against which a strategy checks its settings.

    batch_size, eval_batch_size: examples over all workers. emulated: whether link delays are emulated. compression: the
    compression of tensors between devices, or "none". total_steps: number of steps of the run; None if unknown.
    """

    optimizer: Optimizer
    batch_size: int
    eval_batch_size: int
    microbatches: int
    emulated: bool
    compression: str
    total_steps: int | None = None


@dataclass(frozen=True)
class Processes:
    """The processes of a run by role: workers compute, servers keep variables."""

    workers: int
    servers: int = 0


@dataclass(frozen=True)
class Race:
    """A race between processes that determines the results of a run, and the record that allows repeating the run.

    racers: the racing processes, for messages. decisions: the name of the record of each update's decisions
    (:meth:`~runner.engine.run.step_driver.StepDriver.decisions`). This record spans all starts of a run, and the same
    processes can repeat the run. If None, each start has a record of the order in which clients ended, and one process
    can repeat the start. decided: whether timing has no effect, because of a virtual clock, a record or a single racer.
    """

    racers: str
    decisions: str | None = None
    decided: bool = False


@dataclass(frozen=True)
class LayerPlacement:
    """The settings for placing the layers of a strategy that leaves their devices open.

    costs: path of a ``trace_summary.json`` with measured seconds; None to use formulas. stored: path of an earlier
    ``placement.json``; None to search. rivals: strategies whose step times are predicted for comparison, name ->
    settings of ``parallelism``. measured_steps: steps of the run and of each rival to measure before training.
    """

    costs: str | None = None
    stored: str | None = None
    rivals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    measured_steps: int = 0


PER_HOST = "PER_HOST"
"""A value in :attr:`Strategy.variants`, which is replaced by the number of workers of each host."""


@dataclass
class Strategy(ABC):
    """The base class of all strategies; the fields are the settings.

    splits_batch: whether every worker computes a share of each batch. line_search: whether an update may evaluate its
    batch several times, as L-BFGS does. keeps_rows: whether the update of a table receives only the gradients of the
    rows that a batch looks up; if not, the update receives a gradient of the table's size. order_keys: keys that decide
    the order in which clients run, but not the computation; runs that differ in these keys alone can repeat each other.
    variants: settings that ``runner recommend`` tries, each with the defaults of the other settings. A variant with
    :data:`PER_HOST` is tried only on hosts with several workers.
    """

    name: str = ""
    workers: SmallCount = 1

    splits_batch: ClassVar[bool] = True
    line_search: ClassVar[bool] = False
    keeps_rows: ClassVar[bool] = False
    order_keys: ClassVar[tuple[str, ...]] = ()
    variants: ClassVar[tuple[Mapping[str, object], ...]] = ({},)

    @abstractmethod
    def build(self, workload: Workload) -> Program:
        """Return the program that trains ``workload`` with this strategy.

        Raises ConfigError for a network, batch or optimizer that the strategy cannot train.
        """

    def build_for_simulation(self, workload: Workload) -> Program:
        """Return a program for simulation, in which workers with equal plans may share the clients of one of them."""
        return self.build(workload)

    @property
    def processes(self) -> Processes:
        """The processes the strategy needs."""
        return Processes(self.workers)

    @property
    def worker_keys(self) -> str:
        """The settings that decide the number of worker processes, as text for messages."""
        return f"parallelism.workers={self.workers}"

    @property
    def sums_by_all_reduce(self) -> bool:
        """Whether the graph sums gradients by ``all_reduce`` ops, which a GPU collective library can replace."""
        return False

    @property
    def race(self) -> Race | None:
        """The race that determines the results of a run; None if the configuration determines them."""
        return None

    @property
    def replayed(self) -> str | None:
        """The path of the record that this run repeats, from the key ``replay``; None if there is none."""
        return None

    @property
    def layer_placement(self) -> LayerPlacement | None:
        """The placement of the layers; None if ``build`` chooses the device of every node."""
        return None

    def replaying(self, record: str) -> Self:
        """Return this strategy with the key ``replay`` set to ``record``, to repeat the run that wrote the record."""
        raise NotImplementedError(f"parallelism={self.name} defines a race, but no method replaying()")

    def examples_per_update(self, batch_size: int) -> int:
        """Return the number of examples handed out per update, above ``batch_size`` if some shares may be dropped."""
        return batch_size

    def faults(self, facts: TrainingFacts) -> Iterator[str]:
        """Yield a message for each setting that contradicts the facts, with the expected value and the remedy."""
        if self.splits_batch:
            yield from self._faults_of_shares(facts)
        if facts.optimizer.line_search and not self.line_search:
            yield (
                f"optimizer={facts.optimizer.name} with parallelism={self.name}: only single and sandblaster support "
                "a line search; use one of them, or another optimizer"
            )
        if facts.optimizer.lazy and not self.keeps_rows:
            yield (
                f"optimizer.lazy=true with parallelism={self.name}: gradients of tables have the size of the table, so "
                "all rows are updated; use optimizer.lazy=false, or parallelism=single, model or sync_data"
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
                f"train.microbatches={facts.microbatches} with parallelism={self.name}: each worker's "
                "share of a batch is one microbatch; use parallelism=single, or train.microbatches=1"
            )
