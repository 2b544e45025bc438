"""What a strategy hands to the engine: one graph, and the clients that run parts of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from runner.engine.compile import Signature
from runner.engine.conductor import Clients, Conductor, Synchronous
from runner.engine.graph import Graph
from runner.engine.inputs import InputSlot
from runner.engine.interleaving import Interleaving
from runner.engine.tensor import Tensor, TensorSpec

TRAIN = "train"


@dataclass(frozen=True)
class Client:
    """One way to run a program's graph.

    fetches: name -> tensor to bring back. targets: nodes to run besides. inputs: tensors the input source feeds.
    feeds: name -> tensors that all receive the value the caller gives under that name (one per replica). exact: no bit
    may be lost on a wire, whatever the cluster's compression: for what carries or judges the state of a run. deferred:
    it is launched beside others, and its run on a device begins when all that the device receives is there; then no
    device may receive what depends on something that it sends itself. slowed: emulated slow workers wait before it,
    from when they are told to run it. per_update: runs in an update, on average; for estimates. Where an update
    evaluates its batch several times: in one evaluation.
    """

    name: str
    fetches: Mapping[str, Tensor] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    inputs: tuple[InputSlot, ...] = ()
    feeds: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    exact: bool = False
    deferred: bool = False
    slowed: bool = False
    per_update: float = 1.0

    @cached_property
    def signature(self) -> Signature:
        """What the engine compiles for this client; sessions look it up in every step."""
        fed = (*(slot.tensor for slot in self.inputs), *(t for group in self.feeds.values() for t in group))
        fetched = tuple(dict.fromkeys(self.fetches.values()))
        return Signature(fetched, self.targets, tuple(fed), exact=self.exact)


@dataclass(frozen=True)
class OneProcess:
    """The wish of a program to be run by one process, with all its devices.

    interleaving: makes what orders the parts of launched clients; None where there are none. replay: the record of an
    earlier run that orders them instead.
    """

    interleaving: Callable[[], Interleaving] | None = None
    replay: str | None = None


@dataclass(frozen=True)
class Program:
    """A device-annotated training graph and its clients.

    graph: where it leaves devices open, :func:`~runner.engine.program_placement.place_program` decides them for all
    clients.
    clients: "init" assigns initial values; "train" runs one step and fetches "loss" and "accuracy"; "eval" scores
    one batch; "save" fetches every variable, whole, by unsharded name; "restore" feeds them back. Instead of "train"
    there may be deferred clients, which ``conduct`` makes updates of.
    variables: unsharded name -> spec of everything a checkpoint holds. workers, servers: number of worker
    tasks and of parameter-server tasks used. conduct: makes what runs the clients of each update. one_process:
    None where every task is a process of its own. examples: given out in an update; None for those of its batch, fewer
    than which count where shares may come too late. repeated_by_endings: what a run comes to depends on the order in
    which launched clients end, and on nothing else that the configuration does not say, so that it is repeated from
    that (:class:`OneProcess`, replay). replayed_steps: how many updates a record has that says what is to count in
    each; None: there is none.
    """

    graph: Graph
    clients: Mapping[str, Client]
    variables: Mapping[str, TensorSpec]
    workers: int
    servers: int = 0
    conduct: Callable[[Clients], Conductor] = Synchronous
    one_process: OneProcess | None = None
    examples: int | None = None
    repeated_by_endings: bool = False
    replayed_steps: int | None = None

    @property
    def training(self) -> tuple[Client, ...]:
        """The clients that updates are made of: ``train``, or those that are launched."""
        return tuple(each for each in self.clients.values() if each.name == TRAIN or each.deferred)
