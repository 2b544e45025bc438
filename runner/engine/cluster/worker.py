"""The main loop of a worker, which holds the variables of one device and runs the device's part of every step.

A parameter server runs the same program under another job name. One thread handles all messages and runs all steps.
While a step waits for a tensor, this thread keeps reading its inbox. Another thread sends heartbeats.
A thread of ZeroMQ transfers bytes meanwhile, so sends overlap with kernels.
"""

import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from runner.engine.cluster.assignment import (
    Assignment,
    bell_key,
    feed_sizes,
    peer_of,
    receivers,
    recv_specs,
    senders,
    sent_messages,
)
from runner.engine.cluster.emulation import Links
from runner.engine.cluster.loaded_plan import LoadedPlan
from runner.engine.cluster.mailbox import WAIT_S, LaunchQueue, Mailbox, QueuedLaunch, Request, StepAbandoned, Stopped
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.encoding import decode_document, encode_document
from runner.engine.cluster.transport.endpoint import Endpoint
from runner.engine.cluster.transport.heartbeat import Progress
from runner.engine.cluster.transport.private_directory import sibling_address
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaWriter
from runner.engine.cluster.wire_rendezvous import WireRendezvous
from runner.engine.cluster.worker_setup import WorkerSetup
from runner.engine.compile.program import InputSource
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.inputs import ReadAhead, SharedReading
from runner.engine.run.kernel_table import load_gpu_kernels
from runner.engine.run.recording import DELAY, Recorder, read_plans, to_document
from runner.engine.run.session import PEAK_MEMORY, TURN, peak_rss_bytes
from runner.engine.run.storage import Arena, VariableStore
from runner.engine.run.wires import wires_of
from runner.errors import ClusterError, RunnerError, SecurityError, as_runner_error
from runner.kernels.platform import HostPlatform, Platform
from runner.kernels.registry import Registry
from runner.system.redaction import redact_text
from runner.system.text import ascii_only

log = logging.getLogger(__name__)

_RECOVERY_S = 300.0  # seconds for which a worker on the master's host waits for a recovery; the master may be saving
_CUT_OFF_S = 10.0  # seconds for which a worker over TCP waits for a recovery; the network may have cut the worker off

SourceMaker = Callable[[Mapping[str, Any]], InputSource]


def close_source(source: InputSource | None) -> None:
    """Close an input source, if it can be closed."""
    close = getattr(source, "close", None)
    if close is not None:
        close()


@dataclass
class Worker:
    """The state of a worker, and the handlers of the messages that it receives.

    mailbox: reads from ``endpoint``, which is connected to the master at ``address``. peers: names of all workers and
    parameter servers, including this one. The setup contains their addresses; a peer without an address there has its
    inbox in the directory of the master's inbox. lines: log lines for the heartbeat thread. spins: number of times
    that a wait reads a doorbell in shared memory before it sleeps. decoded: encoded document -> assignment, for
    assignments that were decoded in advance.
    """

    endpoint: Endpoint
    mailbox: Mailbox
    address: str
    peers: Sequence[str]
    make_source: SourceMaker
    registry: Registry
    progress: Progress
    lines: SimpleQueue[str] = field(default_factory=SimpleQueue)
    spins: int = 0
    decoded: dict[bytes, Assignment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._use_platform(HostPlatform(self.registry.join))
        self._source: InputSource | None = None
        self._connected: set[str] = set()
        self._check_finite: bool | None = None
        self._links: Links | None = None
        self._addresses: Mapping[str, str] = {}
        self._plans: dict[str, LoadedPlan] = {}
        self._trace: tuple[Recorder, list[DeviceExecutor]] | None = None
        self._launched = LaunchQueue(self.mailbox)
        self._leave_communicator: Callable[[], None] = lambda: None

    def serve(self, check_heartbeat: Callable[[], None]) -> int:
        """Handle messages until shutdown or an error, report an error to the master, and return the exit code.

        After a shutdown, returns the exit code of the run. If another process is lost, only the running step ends.
        """
        try:
            while True:
                check_heartbeat()
                try:
                    self._handle_next()
                except StepAbandoned as abandoned:
                    self._abandon(abandoned.message)
                except ClusterError as lost:
                    self._abandon(self._await_recovery(lost))
        except Stopped as stopped:
            self._close_source()
            if stopped.message.reason:
                log.warning("the run has ended: %s", stopped.message.reason)
            self.endpoint.send(messages.MASTER, messages.Bye())
            if not stopped.message.code:
                # Leaving waits for all workers. After an error, some of them may never leave.
                self._leave_communicator()
            return stopped.message.code
        except KeyboardInterrupt:
            self.endpoint.send(messages.MASTER, messages.Failed.of(KeyboardInterrupt("Ctrl-C stopped this process")))
            raise
        except (RunnerError, MemoryError) as raised:
            error = as_runner_error(raised)
            log.error("%s", error)
            self.endpoint.send(messages.MASTER, messages.Failed.of(error))
            return error.exit_code
        except Exception as error:
            # Report the defect to the master before the interpreter prints the traceback.
            self.lines.put(ascii_only(redact_text(traceback.format_exc()))[-messages.MAX_ERROR_TEXT :])
            self.endpoint.send(messages.MASTER, messages.Failed.of(error))
            raise
        finally:
            self._close_source()

    def _handle_next(self) -> None:
        """Handle the next message or run the next launched step."""
        self.mailbox.check_connections()
        launched, wait_s = self._launched.first()
        request = self.mailbox.next(wait_s)
        if request is not None:
            self._answer(request)
        elif launched is not None and wait_s == 0.0:
            delay_s, turn = self._launched.begin(launched)
            step = launched.message.step
            self._run(launched.message.plan, range(step, step + 1), delay_s, {TURN: float(turn)})

    def _await_recovery(self, error: ClusterError) -> messages.Abandon:
        """Report that another process cannot be reached, wait for the start of a recovery, and return its message.

        Raises ``error`` if no such message arrives in time; Stopped on shutdown.
        """
        log.warning("%s", error)
        self.endpoint.send(messages.MASTER, messages.Failed.of(error))
        self.progress.enter(messages.IDLE, 0)
        wait_s = _RECOVERY_S if self.address.startswith("ipc://") else _CUT_OFF_S
        deadline = self.mailbox.clock() + wait_s
        while (left := deadline - self.mailbox.clock()) > 0:
            request = self.mailbox.next(min(left, WAIT_S))
            if request is None:
                continue
            match request.received.message:
                case messages.Abandon() as abandon:
                    return abandon
                case messages.Shutdown() as shutdown:
                    raise Stopped(shutdown)
                case messages.Moved():
                    self._answer(request)
        raise error

    def _abandon(self, message: messages.Abandon) -> None:
        """Begin a new epoch: drop all tensors, launched steps and spans, and the connections to lost processes.

        The first step that sends to a replacement connects to it; the replacement has joined the run by then.
        """
        if self._trace is not None:
            self._end_trace()
        self.mailbox.clear()
        self._launched = LaunchQueue(self.mailbox)
        for loaded in self._plans.values():
            loaded.executor.count_again()
        self._connected.difference_update(message.lost)
        self.endpoint.advance(message.begins, message.lost)
        for loaded in self._plans.values():
            loaded.rendezvous.restart()
        self.progress.enter(messages.IDLE, 0)
        self.endpoint.send(messages.MASTER, messages.Abandoned())
        log.info("epoch %d begins with a replacement for %s", message.begins, ", ".join(message.lost))

    def _close_source(self) -> None:
        source, self._source = self._source, None
        close_source(source)

    def _answer(self, request: Request) -> None:
        received = request.received
        match received.message:
            case messages.Setup():
                self._set_up(decode_document(received.frames[0]))
            case messages.Load(plan=plan):
                self._load(plan, received.frames[0])
            case messages.Run(plan=plan, step=step, delay_s=delay_s, count=count):
                self._run(plan, range(step, step + count), delay_s, {})
            case messages.Launch() as launched:
                loaded = self._plan(launched.plan, launched.step)
                self._launched.waiting.append(QueuedLaunch(launched, loaded.received, request.read_at))
            case messages.StartTrace():
                self._start_trace(read_plans(decode_document(received.frames[0])))
            case messages.StopTrace():
                self._stop_trace()
            case messages.AskTime(asked_ns=asked_ns):
                self.endpoint.send(messages.MASTER, messages.Time(asked_ns, time.monotonic_ns()))
            case messages.Abandon() as abandon:
                self._abandon(abandon)
            case messages.Moved(addresses=addresses):
                self._addresses = {**self._addresses, **addresses}
            case messages.Shutdown() as shutdown:
                if not shutdown.code:
                    self._synchronize()
                raise Stopped(shutdown)
            case _:
                raise SecurityError(f"{received.message.kind!r} from {received.source}: unexpected message")

    def _set_up(self, document: object) -> None:
        self.progress.enter(messages.SETUP, 0)
        if self._check_finite is not None:
            raise SecurityError("second setup refused: expected one setup")
        setup = WorkerSetup.from_document(document)
        if setup.link is not None:
            self._links = Links(setup.link, self.mailbox.clock)
        if (gpu := setup.gpus.get(self.endpoint.name)) is not None:
            self.registry = load_gpu_kernels(setup.use, gpu)
            self._use_platform(self.registry.platforms["gpu"](gpu))
        if setup.communicator is not None and setup.communicator.join(self.registry, self.endpoint.name):
            self._leave_communicator = self.registry.communicators[setup.communicator.library].leave
        self._check_finite = setup.check_finite
        self._addresses = setup.addresses
        if setup.source is not None:
            self._source = self.make_source(setup.source)
        self.progress.enter(messages.IDLE, 0)

    def _synchronize(self) -> None:
        """Wait for the device; raises RunnerError if it has failed since the last synchronization."""
        try:
            self._variables.platform.synchronize()
        except RuntimeError as error:
            raise RunnerError(f"{self.endpoint.name}: the device failed: {error}") from error

    def _use_platform(self, platform: Platform) -> None:
        """Compute on ``platform`` from now on, with an empty variable store and an empty arena."""
        self._variables = VariableStore(platform)
        self._arena = Arena(platform)

    def _load(self, plan: str, document: memoryview) -> None:
        self.progress.enter(messages.LOAD, 0)
        if self._check_finite is None or plan in self._plans:
            raise SecurityError(f"plan {plan!r} refused: expected each plan once, after setup")
        decoded = self.decoded.pop(bytes(document), None)
        assignment = decoded or Assignment.from_document(decode_document(document), self.registry)
        own_name = self.endpoint.name
        if peer_of(assignment.device) != own_name:
            raise SecurityError(f"plan {plan!r} refused: for {assignment.device}, expected the device of {own_name}")
        peers = receivers(assignment.plan, assignment.arenas[own_name].sizes)
        self._connect(peers)
        readers = {owner: ArenaReader(spec) for owner, spec in assignment.arenas.items() if owner != own_name}
        writer = ArenaWriter(assignment.arenas[own_name])
        specs, targets = recv_specs(assignment.plan), sorted(receivers(assignment.plan))
        sent = sent_messages(assignment, emulated=self._links is not None)
        arena_keys = {key for reader in readers.values() for key in reader.spec.sizes}
        received = {key: peer for key, peer in senders(assignment.plan).items() if bell_key(key) not in arena_keys}
        # The values of booleans are checked when they are received, so each of them needs a call.
        awaited = [key for key in received if assignment.deferred and specs[key].dtype != "bool"]
        given = (plan, self.endpoint, self.mailbox, writer, readers, specs, targets, sent, awaited, self.registry)
        rendezvous = WireRendezvous(*given, self._links, self.spins)
        wires = wires_of(self._variables.platform, rendezvous)
        executor = DeviceExecutor(
            assignment.plan, self.registry, self._variables, self._arena, wires, check_finite=self._check_finite
        )
        shared = SharedReading(self._source, {assignment.device: assignment.inputs})
        inputs = ReadAhead(executor, partial(shared.read, assignment.device))
        sources = received | dict.fromkeys(feed_sizes(assignment.plan, assignment.inputs), messages.MASTER)
        copied = {key: readers[owner] for key, owner in sources.items() if readers[owner].spec.is_copy}
        self.mailbox.expect(plan, received | {key: sources[key] for key in copied}, copied)
        self._plans[plan] = LoadedPlan(assignment, executor, rendezvous, inputs, frozenset(received), frozenset(peers))
        self.endpoint.send(messages.MASTER, messages.Loaded(plan))
        self.progress.enter(messages.IDLE, 0)

    def _connect(self, peers: Set[str]) -> None:
        """Connect to the receivers in a plan, but to no other process, which may have ended already."""
        if unknown := peers - set(self.peers):
            raise SecurityError(f"plan sends to {', '.join(sorted(unknown))}: expected one of {', '.join(self.peers)}")
        for peer in sorted(peers - self._connected):
            self.endpoint.connect(peer, self._addresses.get(peer) or sibling_address(self.address, peer))
            self._connected.add(peer)

    def _plan(self, plan: str, step: int) -> LoadedPlan:
        if plan not in self._plans:
            raise SecurityError(
                f"step {step} refused: plan {plan!r} is not loaded; loaded: {', '.join(self._plans) or 'none'}"
            )
        return self._plans[plan]

    def _run(self, plan: str, steps: range, delay_s: float, stats: Mapping[str, float]) -> None:
        """Run consecutive steps of a plan and report the last one."""
        first, last = steps[0], steps[-1]
        self.progress.enter(messages.STEP, first)
        loaded = self._plan(plan, first)
        self.decoded.clear()  # All plans that a recovery needs are loaded before the first step after it.
        if len(steps) > loaded.assignment.depth:
            raise SecurityError(f"{len(steps)} steps of {plan!r} refused: expected at most {loaded.assignment.depth}")
        if not loaded.peers <= self._connected:  # a peer was replaced
            self._connect(loaded.peers)
        if delay_s:
            loaded.executor.before_run(first, DELAY, lambda: self.mailbox.wait(delay_s, first))
        for index, step in enumerate(steps):
            if index:
                self.progress.enter(messages.STEP, step)
            loaded.run(step, index)
        self.endpoint.send(messages.MASTER, messages.Done(plan, last, {PEAK_MEMORY: float(peak_rss_bytes()), **stats}))
        self.progress.enter(messages.IDLE, last)

    def _start_trace(self, plans: Sequence[str]) -> None:
        self.progress.enter(messages.LOAD, 0)
        unknown = [plan for plan in plans if plan not in self._plans]
        if unknown or self._trace is not None:
            reason = f"plans {', '.join(unknown)} are not loaded" if unknown else "a trace is being recorded"
            raise SecurityError(f"trace of {len(plans)} plans refused: {reason}")
        recorder, executors = self._trace = Recorder(), [self._plans[plan].executor for plan in plans]
        for number, executor in enumerate(executors):
            executor.record(recorder, number)
        self.progress.enter(messages.IDLE, 0)

    def _stop_trace(self) -> None:
        self.progress.enter(messages.LOAD, 0)
        if self._trace is None:
            raise SecurityError("end of a trace refused: no trace is being recorded")
        recorder = self._end_trace()
        self.endpoint.send(messages.MASTER, messages.Traced(), [encode_document(to_document(recorder.spans))])
        self.progress.enter(messages.IDLE, 0)

    def _end_trace(self) -> Recorder:
        """Stop recording; return the recorder with the spans."""
        assert self._trace is not None
        (recorder, executors), self._trace = self._trace, None
        for executor in executors:
            executor.record(None)
        return recorder
