"""A worker process: it joins the master, keeps the variables of its device and runs its part of every step.

One thread does everything but heartbeats: it waits for a message, acts on it, and while a step waits for a tensor
it keeps reading its inbox. ZeroMQ's own thread moves bytes meanwhile, so sends overlap with kernels.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from runner.engine.assignment import Assignment, feed_key, fetch_key
from runner.engine.device import DeviceName
from runner.engine.executor import DeviceExecutor, VariableStore
from runner.engine.inputs import InputSource
from runner.engine.kernel_table import load_kernels
from runner.engine.processes import die_with_parent, dump_stacks_when_asked
from runner.engine.session import peak_rss_bytes, read_inputs
from runner.engine.transport.address import sibling_address
from runner.engine.transport.codec import unpack_one
from runner.engine.transport.documents import decode_document
from runner.engine.transport.endpoint import Endpoint, Identity, Limits, Received
from runner.engine.transport.heartbeat import HeartbeatThread, Progress
from runner.engine.transport.messages import (
    IDLE,
    LOAD,
    SETUP,
    STEP,
    Bye,
    Done,
    Failed,
    Hello,
    Load,
    Loaded,
    Run,
    Setup,
    Shutdown,
    TensorReady,
    Welcome,
)
from runner.engine.transport.names import HEARTBEAT_ROLE, MASTER, peer_name
from runner.engine.transport.shared_memory import ArenaReader, ArenaWriter
from runner.engine.transport.tokens import read_token
from runner.engine.transport.zmq_context import open_context
from runner.engine.transport.zmq_endpoint import ZmqEndpoint
from runner.engine.transport.zmq_outbox import Outbox
from runner.errors import ClusterError, RunnerError, SecurityError

log = logging.getLogger(__name__)

Array = NDArray[Any]
SourceMaker = Callable[[Mapping[str, Any]], InputSource]

WAIT_S = 1.0
"""Longest wait for a message before the worker looks at its heartbeat thread again."""

RECEIVE_LIMIT_S = 600.0
"""A tensor that takes longer will not come. The master's limits are tighter; this one is for a lost master."""


@dataclass(frozen=True)
class Joining:
    """What a worker is told on its command line; the token comes in a file of mode 0600.

    peers: workers in the run. queued_messages: most messages one peer may send it before it reads again.
    """

    address: str
    role: str
    index: int
    token_file: Path
    run: str
    epoch: int
    parent: int
    peers: int
    queued_messages: int


def main(joining: Joining, make_source: SourceMaker) -> int:
    """Run a worker until the master says shutdown; return the exit code.

    make_source: builds the input source from the plain description that the master sends.
    """
    die_with_parent(joining.parent)
    dump_stacks_when_asked()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    identity = Identity(
        joining.run, joining.epoch, joining.role, joining.index, read_token(joining.token_file)
    )
    limits = Limits(peers=joining.peers, queued_messages=joining.queued_messages)
    own_address = sibling_address(joining.address, identity.name)
    progress = Progress()
    with open_context(3 * joining.peers + 6) as context:

        def open_heartbeat() -> Outbox:
            beat = Identity(identity.run, identity.epoch, HEARTBEAT_ROLE, identity.index, identity.token)
            outbox = Outbox(context, beat, limits)
            outbox.connect(MASTER, joining.address)
            return outbox

        with ZmqEndpoint(context, identity, own_address, limits) as endpoint:
            endpoint.connect(MASTER, joining.address)
            with HeartbeatThread(open_heartbeat, progress) as heartbeat:
                worker = Worker(endpoint, joining.address, joining.peers, make_source, progress)
                return worker.serve(heartbeat.check)


class Stopped(Exception):
    """The master said shutdown while a step was waiting."""


class Worker:
    """The state of a worker and what it does on each message."""

    def __init__(
        self, endpoint: Endpoint, address: str, peers: int, make_source: SourceMaker, progress: Progress
    ) -> None:
        self._endpoint = endpoint
        self._address = address
        self._peers = peers
        self._make_source = make_source
        self._progress = progress
        self._registry = load_kernels()
        self._variables = VariableStore()
        self._source: InputSource | None = None
        self._check_finite = False
        self._plans: dict[str, _LoadedPlan] = {}
        self._mailbox = _Mailbox(endpoint)

    def serve(self, check_heartbeat: Callable[[], None]) -> int:
        """Answer messages until told to leave; an error is told to the master and ends the worker."""
        try:
            while True:
                check_heartbeat()
                received = self._mailbox.next(WAIT_S)
                if received is not None:
                    self._answer(received)
        except Stopped:
            self._endpoint.send(MASTER, Bye())
            return 0
        except RunnerError as error:
            log.error("%s", error)
            self._endpoint.send(MASTER, Failed.of(error))
            return error.exit_code
        except Exception as error:
            # A defect: the master must hear of it too before the interpreter prints the traceback.
            self._endpoint.send(MASTER, Failed.of(error))
            raise
        finally:
            close = getattr(self._source, "close", None)
            if close is not None:
                close()

    def _answer(self, received: Received) -> None:
        match received.message:
            case Setup():
                self._set_up(decode_document(received.frames[0]))
            case Load(plan=plan):
                self._load(plan, decode_document(received.frames[0]))
            case Run(plan=plan, step=step):
                self._run(plan, step)
            case Shutdown():
                raise Stopped
            case _:
                raise SecurityError(f"{received.message.kind!r} from {received.source} was not expected here")

    def _set_up(self, document: object) -> None:
        self._progress.enter(SETUP, 0)
        if not isinstance(document, Mapping) or set(document) != {"source", "check_finite"}:
            raise SecurityError("setup refused: expected a map with the fields 'source' and 'check_finite'")
        for index in range(self._peers):
            peer = peer_name("worker", index)
            if peer != self._endpoint.name:
                self._endpoint.connect(peer, sibling_address(self._address, peer))
        self._check_finite = bool(document["check_finite"])
        if document["source"] is not None:
            self._source = self._make_source(document["source"])
        self._progress.enter(IDLE, 0)

    def _load(self, plan: str, document: object) -> None:
        self._progress.enter(LOAD, 0)
        assignment = Assignment.from_document(document)
        readers = {
            owner: ArenaReader(spec)
            for owner, spec in assignment.arenas.items()
            if owner != self._endpoint.name
        }
        writer = ArenaWriter(assignment.arenas[self._endpoint.name])
        executor = DeviceExecutor(
            assignment.part.plan(assignment.device),
            self._registry,
            self._variables,
            _WireRendezvous(plan, self._mailbox, writer, readers),
            check_finite=self._check_finite,
        )
        self._plans[plan] = _LoadedPlan(assignment, executor, writer, readers)
        self._endpoint.send(MASTER, Loaded(plan))
        self._progress.enter(IDLE, 0)

    def _run(self, plan: str, step: int) -> None:
        self._progress.enter(STEP, step)
        loaded = self._plans[plan]
        wanted = {feed.tensor for feed in loaded.executor.plan.feeds}
        feeds = read_inputs(self._source, loaded.assignment.inputs, wanted, step)
        for feed in loaded.executor.plan.feeds:
            if feed.tensor not in feeds:
                feeds[feed.tensor] = loaded.readers[MASTER].read(
                    feed_key(feed.tensor), feed.spec.dtype, feed.spec.shape
                )
        for tensor, value in loaded.executor.run(step, feeds).items():
            loaded.writer.put(fetch_key(tensor), value)
        stats = {"peak_memory_bytes": float(peak_rss_bytes())}
        self._endpoint.send(MASTER, Done(plan, step, {}, stats))
        self._progress.enter(IDLE, step)


@dataclass(frozen=True)
class _LoadedPlan:
    assignment: Assignment
    executor: DeviceExecutor
    writer: ArenaWriter
    readers: Mapping[str, ArenaReader]


class _Mailbox:
    """The inbox, with tensors that came early put aside until a Recv asks for them."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._tensors: dict[tuple[str, int, str], Received] = {}

    def next(self, timeout_s: float) -> Received | None:
        """The next message that asks for something, None when none came in time."""
        received = self.endpoint.receive(timeout_s)
        if received is None:
            return None
        match received.message:
            case TensorReady() as message:
                self._put_aside(received, message)
            case Hello() | Welcome():
                pass  # The endpoint has admitted the caller; there is nothing to answer.
            case _:
                return received
        return None

    def tensor(self, plan: str, step: int, key: str, source: str) -> Received:
        """Wait for a tensor and take it out; raises ClusterError past the limit and Stopped on shutdown."""
        wanted = (plan, step, key)
        deadline = time.monotonic() + RECEIVE_LIMIT_S
        while wanted not in self._tensors:
            received = self.next(WAIT_S)
            if received is not None and isinstance(received.message, Shutdown):
                raise Stopped
            if received is not None:
                raise SecurityError(f"{received.message.kind!r} from {received.source} came within a step")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"step {step}: {key!r} did not arrive from {source} within {RECEIVE_LIMIT_S:g} s"
                )
        return self._tensors.pop(wanted)

    def _put_aside(self, received: Received, message: TensorReady) -> None:
        key = (message.plan, message.step, message.key)
        if key in self._tensors:
            raise SecurityError(f"{message.key!r} of step {message.step} came twice")
        self._tensors[key] = received


class _WireRendezvous:
    """The rendezvous of one plan between processes: bytes through arenas, references through messages."""

    def __init__(
        self, plan: str, mailbox: _Mailbox, writer: ArenaWriter, readers: Mapping[str, ArenaReader]
    ) -> None:
        self._plan = plan
        self._mailbox = mailbox
        self._writer = writer
        self._arenas = {reader.spec.name: reader for reader in readers.values()}
        self._peers: dict[str, str] = {}

    def send(self, step: int, key: str, destination: str, value: Array) -> None:
        """Copy the value to shared memory and tell its reader where."""
        reference = self._writer.put(key, value)
        self._mailbox.endpoint.send(self._peer(destination), TensorReady(self._plan, step, key, reference))

    def receive(self, step: int, key: str, source: str) -> Array:
        """Wait for the sender's word and view the value where it lies, until the step ends."""
        received = self._mailbox.tensor(self._plan, step, key, source)
        message = received.message
        assert isinstance(message, TensorReady), "the mailbox keeps nothing else"
        if received.source != self._peer(source):
            raise SecurityError(f"{key!r} came from {received.source}, expected {self._peer(source)}")
        return unpack_one(key, message.reference, received.frames, self._arenas)

    def _peer(self, device: str) -> str:
        if device not in self._peers:
            name = DeviceName.parse(device)
            self._peers[device] = peer_name(str(name.job), int(name.task or 0))
        return self._peers[device]
