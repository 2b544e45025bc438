"""The rendezvous between processes: values are in arenas, and doorbells or messages announce them.

A receiver that shares memory with the sender reads the value in the arena. Other receivers get the bytes in messages.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from runner.engine.cluster.arrivals import send_parts
from runner.engine.cluster.assignment import FINISHED, bell_key, peer_of
from runner.engine.cluster.emulation import Links
from runner.engine.cluster.mailbox import RECEIVE_LIMIT_S, Mailbox
from runner.engine.cluster.transport.endpoint import Endpoint
from runner.engine.cluster.transport.messages import TensorsReady
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaWriter
from runner.engine.compile.passes.transfers import sent_tensor
from runner.engine.graph.tensor import TensorSpec
from runner.errors import ClusterError, RunnerError, SecurityError
from runner.kernels.contract import Array, Doorbells, NativeCall
from runner.kernels.platform import HostPlatform, Work
from runner.kernels.registry import Registry

_RUNS = 2**32


@dataclass
class WireRendezvous:
    """The :class:`~runner.engine.run.rendezvous.Rendezvous` of one plan.

    writer: writes this process's arena. readers: peer -> reader of the peer's arena, or of a copy if the peer does not
    share memory with this process. specs: key -> shape and dtype, for all received values. receivers: peers to which
    this process sends. messages: the keys of the transfers in each message. awaited: keys of transfers without bells
    that arrive before a run begins, as in deferred clients. registry: provides and joins the native calls of doorbells.
    links: emulated links, or None. spins: number of times that a wait reads a doorbell before it sleeps.

    A transfer with a bell in the sender's arena sends no message. The sender writes the number of the plan's current
    run, which both processes count, into the bell. The upper half of the number is the epoch, so that no bell of an
    interrupted run has the number of a later run.
    """

    plan: str
    endpoint: Endpoint
    mailbox: Mailbox
    writer: ArenaWriter
    readers: Mapping[str, ArenaReader]
    specs: Mapping[str, TensorSpec]
    receivers: Collection[str]
    messages: Collection[tuple[str, ...]]
    awaited: Collection[str]
    registry: Registry
    links: Links | None = None
    spins: int = 0

    def __post_init__(self) -> None:
        self._step = 0
        self._number = np.zeros(1, np.int64)
        self._platform = HostPlatform(self.registry.join)
        self._calls: dict[str, Callable[[], object] | None] = {}
        self._finished: Callable[[], object] = lambda: None
        self._wait_for_receivers: Callable[[], object] = lambda: None
        if FINISHED in self.writer.spec.sizes:
            self._finished = self._join([self._ring(FINISHED)])
            if waits := [self._wait(FINISHED, peer, "the end of the step") for peer in self.receivers]:
                self._wait_for_receivers = self._join(waits)
        self._waiting: tuple[object, float] = (None, 0.0)
        self._ended_by = {keys[-1]: keys for keys in self.messages}
        self.restart()

    def restart(self) -> None:
        """Number the runs from 0 in the endpoint's epoch."""
        self._number[0] = self.endpoint.epoch * _RUNS

    def begin(self, step: int, *, first: bool = True) -> None:
        """Begin the next run of the plan. first: whether all devices have finished the previous run.

        If they have not, waits until all receivers have read the values of that run, which the next run overwrites.
        Takes the awaited tensors.
        """
        self._step = step
        if not first:
            self._wait_for_receivers()
        self._number[0] += 1
        for key in self.awaited:
            self.mailbox.take(self.plan, step, key)

    def finish(self) -> None:
        """Announce that this device no longer reads values of the current run, so that senders may begin the next."""
        self._finished()

    def outgoing(self, sent: str, nbytes: int) -> NDArray[np.uint8]:
        """Return the memory of the value named ``sent`` in this process's arena."""
        return _of_size(self.writer.memory(sent), nbytes, sent)

    def incoming(self, key: str, source: str, nbytes: int) -> NDArray[np.uint8]:
        """Return the memory of the transfer ``key`` in the sender's arena, mapped read-only."""
        return _of_size(self.readers[peer_of(source)].memory(sent_tensor(key)), nbytes, key)

    def send(self, step: int, key: str, destination: str, value: Array) -> None:
        """Copy the value to the arena unless it was computed there; ring, or send the message after its last tensor."""
        self.writer.put(sent_tensor(key), value)
        if self._called(key, lambda: self.ring(key)):
            return
        peer, keys = peer_of(destination), self._ended_by[key]
        due = 0.0 if self.links is None else self.links.due(peer, sum(self._bytes(each).nbytes for each in keys))
        ready = TensorsReady(self.plan, step, keys, due)
        if self.readers[peer].spec.is_copy:
            send_parts(self.endpoint, peer, ready, self._bytes)
        else:
            self.endpoint.send(peer, ready)

    def _bytes(self, key: str) -> memoryview:
        return self.writer.memory(sent_tensor(key)).data

    def receive(self, step: int, key: str, source: str) -> Array:
        """Wait for the bell or the message; return a view of the value, valid until the step ends."""
        if not self._called(key, lambda: self.arrival(key, source)):
            self.mailbox.take(self.plan, step, key)
        return self.readers[peer_of(source)].read(sent_tensor(key), self.specs[key].dtype, self.specs[key].shape)

    def ring(self, key: str) -> Sequence[NativeCall] | None:
        """Return the call that rings the bell of a transfer in this process's arena.

        Without a bell, returns no calls for a tensor that leaves in the message of a later one, and None for others.
        """
        if bell_key(key) in self.writer.spec.sizes:
            return [self._ring(bell_key(key))]
        return None if key in self._ended_by else []

    def arrival(self, key: str, source: str) -> Sequence[NativeCall] | None:
        """Return the call that waits for the bell of a transfer in the sender's arena.

        Without a bell, returns no calls for a tensor that :meth:`begin` takes, and None for others.
        """
        sender = peer_of(source)
        if bell_key(key) in self.readers[sender].spec.sizes:
            return [self._wait(bell_key(key), sender, f"tensor {key!r}")]
        return [] if key in self.awaited else None

    @property
    def _doorbells(self) -> Doorbells:
        if self.registry.doorbells is None:
            raise RunnerError(f"plan {self.plan!r} has doorbells, but this process cannot compile machine code")
        return self.registry.doorbells

    def _ring(self, bell: str) -> NativeCall:
        return self._doorbells.ring(self.writer.memory(bell), self._number)

    def _wait(self, bell_key: str, peer: str, what: str) -> NativeCall:
        """Return the call that waits for a bell in a peer's arena. what: what the bell announces, for messages."""
        bell = self.readers[peer].memory(bell_key)
        call = self._doorbells.wait(bell, self._number, self.spins)
        return replace(call, retry=partial(self._check, bell.view(np.int64), what, peer))

    def _join(self, calls: Sequence[NativeCall]) -> Callable[[], object]:
        return self._platform.join([Work(call, (), ()) for call in calls]).call

    def _called(self, key: str, bound: Callable[[], Sequence[NativeCall] | None]) -> bool:
        """Make the native calls of a transfer, returned by ``bound`` on first use; return False if they are None."""
        if key not in self._calls:
            native = bound()
            self._calls[key] = None if native is None else self._join(native)
        call = self._calls[key]
        if call is not None:
            call()
        return call is not None

    def _check(self, bell: NDArray[np.int64], what: str, sender: str) -> None:
        """Handle messages while the bell has not rung.

        Raises SecurityError if the sender has counted more runs than this process, and the errors of ``Mailbox.take``.
        """
        number, found = int(self._number[0]), int(bell[0])
        if found > number:
            raise SecurityError(
                f"{what}: {sender} is in run {found % _RUNS} of the plan, expected run {number % _RUNS}"
            )
        now = self.mailbox.clock()
        if self._waiting[0] != (what, sender, number):
            self._waiting = (what, sender, number), now
        if now > max(self._waiting[1], self.mailbox.resumed_at) + RECEIVE_LIMIT_S:
            raise ClusterError(f"step {self._step}: {what} did not arrive from {sender} within {RECEIVE_LIMIT_S:g} s")
        self.mailbox.look(self._step, f"waiting for {what} from {sender}")


def _of_size(memory: NDArray[np.uint8], nbytes: int, what: str) -> NDArray[np.uint8]:
    if memory.nbytes != nbytes:
        raise ValueError(f"{what!r}: memory of {memory.nbytes} bytes, expected {nbytes}")
    return memory
