"""The program that a strategy returns: one graph, the clients that run parts of it, and the inputs of each client.

The module :mod:`runner.engine.run.inputs` reads examples from input sources before the step that needs them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from numpy.typing import NDArray

from runner.engine.graph import Graph, Tensor, TensorSpec, worker_task

Array = NDArray[Any]

ShareKey = tuple[str, int, int, int]
"""A share (range of examples) of a batch: the split, the number of the batch, and lo and hi for examples lo..hi-1."""

Fields = Mapping[str, Array]
"""Field -> array of values, one per example of a share."""


class InputSource(Protocol):
    """A source of examples on request; ``read`` is a pure function of its arguments."""

    def read(self, split: str, step: int, lo: int, hi: int) -> Fields:
        """Return examples lo..hi-1 of the whole batch number ``step``: the workload's fields, index and mask.

        Each field, such as x, has shape (hi-lo, ...). index: (hi-lo,) int64 positions in the stream. mask: (hi-lo,) in
        the dtype of variables, 1 for an example and 0 for padding.
        """


@dataclass(frozen=True)
class Signature:
    """A request to a graph: tensors to fetch, nodes to run, and tensors to feed. Plans are cached by signature.

    exact: whether transfers stay uncompressed even if the cluster enables compression.
    """

    fetches: tuple[Tensor, ...] = ()
    targets: tuple[str, ...] = ()
    feeds: tuple[Tensor, ...] = ()
    exact: bool = False


@dataclass(frozen=True)
class InputSlot:
    """The input that feeds ``tensor`` with the field ``field`` of examples lo..hi-1 of a step's batch from ``split``.

    parts: number of consecutive steps that divide one batch equally. Step s reads batch s // parts, and lo and hi
    increase by (s % parts) * (hi - lo).
    """

    tensor: Tensor
    split: str
    field: str
    lo: int
    hi: int
    parts: int = 1

    def share(self, step: int) -> ShareKey:
        """Return the share that step ``step`` reads."""
        batch, part = divmod(step, self.parts)
        offset = part * (self.hi - self.lo)
        return self.split, batch, self.lo + offset, self.hi + offset


TRAIN = "train"
SAVE = "save"
RESTORE = "restore"


@dataclass(frozen=True)
class Client:
    """One way to run a program's graph.

    fetches: name -> tensor to return. targets: further nodes to run. inputs: tensors that the input source feeds.
    feeds: name -> tensors, one per replica, that all receive the value that the caller passes under this name. exact:
    whether transfers stay uncompressed even if the cluster enables compression, as for clients that save, restore or
    score the state of a run. deferred: whether the client runs concurrently with others. If so, its part on a device
    starts when the device has received all inputs of the part, so no device may receive a tensor that depends on a
    tensor it sends. slowed: whether emulated slow workers wait before they run the client. per_update: average number
    of runs per update, for estimates; if an update evaluates its batch several times, only one evaluation counts.
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
        """The signature that the engine compiles; cached, because sessions read it in every step."""
        fed = (*(slot.tensor for slot in self.inputs), *(t for group in self.feeds.values() for t in group))
        fetched = tuple(dict.fromkeys(self.fetches.values()))
        return Signature(fetched, self.targets, tuple(fed), exact=self.exact)


@dataclass(frozen=True)
class DriverSettings:
    """Settings of the step driver that makes the updates of a program; the type of the settings selects the driver.

    For this base class, every update is one step of the client ``train``. The function
    :func:`~runner.engine.run.step_driver.bind` creates the driver at the start of a session.
    """


ONE_CLIENT = DriverSettings()


@dataclass(frozen=True)
class VirtualClock:
    """A clock on which a client's part on a device takes a lognormal time, determined by seed, client, device and step.

    median_s: client -> median seconds of each of its parts. sigma: standard deviation of the natural logarithm.
    transfer_s: seconds of every transfer.
    """

    seed: int
    median_s: Mapping[str, float]
    sigma: float
    transfer_s: float


@dataclass(frozen=True)
class OneProcess:
    """The requirement that one process runs all devices of a program.

    clock: decides the order in which parts of concurrent clients run; None if no clients run concurrently, or if the
    record of an earlier run decides the order.
    """

    clock: VirtualClock | None = None


@dataclass(frozen=True)
class Copy:
    """A client with the plans of ``client``, except that worker ``worker`` takes the place of worker ``of``."""

    client: Client
    of: int
    worker: int

    def device(self, name: str) -> str:
        """Return the device that takes the place of the original's device ``name``."""
        task, _, kind = name.partition("/device:")
        return f"{worker_task(self.worker)}/device:{kind}" if task == worker_task(self.of) else name


@dataclass(frozen=True)
class Program:
    """A device-annotated training graph and its clients.

    graph: if device names are partial, :func:`~runner.engine.compile.program_placement.place_program` completes them
    for all clients.
    clients: "init" assigns initial values; "train" runs one step and fetches the loss and the metrics; "eval" scores a
    batch; "save" fetches every variable by name, in unsharded form; "restore" feeds all variables. Instead of "train",
    there may be deferred clients, whose runs the step driver combines into updates.
    variables: name -> unsharded spec of each variable in a checkpoint. workers, servers: number of worker tasks and of
    parameter-server tasks. step_driver: settings of the driver that runs the clients of each update. one_process: None
    if every task is a separate process.
    copies: client name -> its :class:`Copy`; only in programs for simulations, whose graphs have no nodes of copies.
    """

    graph: Graph
    clients: Mapping[str, Client]
    variables: Mapping[str, TensorSpec]
    workers: int
    servers: int = 0
    step_driver: DriverSettings = ONE_CLIENT
    one_process: OneProcess | None = None
    copies: Mapping[str, Copy] = field(default_factory=dict)

    @property
    def training(self) -> tuple[Client, ...]:
        """The clients that make updates: ``train``, or the deferred clients."""
        return tuple(each for each in self.clients.values() if each.name == TRAIN or each.deferred)

    @property
    def needed_after_recovery(self) -> tuple[Client, ...]:
        """The clients without which a run cannot go on after a recovery: the training clients, "save" and "restore"."""
        return (*self.training, *(each for each in self.clients.values() if each.name in (SAVE, RESTORE)))
