"""The main loop of a worker: it holds the variables of its device and runs its part of every step.

A parameter server is the same program; only the job in its name differs. One thread does everything except heartbeats:
it waits for a message and handles it; while a step waits for a tensor, the thread keeps reading its inbox. ZeroMQ's
own thread moves bytes meanwhile, so sends overlap with kernels.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from runner.engine.cluster.assignment import Assignment, feed_key, fetch_key, peer_of, senders
from runner.engine.cluster.emulation import Links
from runner.engine.cluster.launch_queue import LaunchQueue, QueuedLaunch
from runner.engine.cluster.mailbox import Mailbox, Request, Stopped
from runner.engine.cluster.transport.address import sibling_address
from runner.engine.cluster.transport.documents import decode_document, encode_document
from runner.engine.cluster.transport.endpoint import Endpoint
from runner.engine.cluster.transport.heartbeat import Progress
from runner.engine.cluster.transport.messages import (
    IDLE,
    LOAD,
    SETUP,
    STEP,
    Bye,
    Done,
    Failed,
    Launch,
    Load,
    Loaded,
    Run,
    Setup,
    Shutdown,
    StartTrace,
    StopTrace,
    Traced,
)
from runner.engine.cluster.transport.names import MASTER
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaWriter
from runner.engine.cluster.wire_rendezvous import WireRendezvous
from runner.engine.cluster.worker_setup import WorkerSetup
from runner.engine.compile.program import InputSource
from runner.engine.graph.tensor import Tensor
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.inputs import ReadAhead, SharedReading
from runner.engine.run.kernel_table import load_gpu_kernels
from runner.engine.run.recording import DELAY, Recorder, read_plans, to_document
from runner.engine.run.session import PEAK_MEMORY, TURN, peak_rss_bytes
from runner.engine.run.storage import Arena, VariableStore
from runner.engine.run.wires import wires_of
from runner.errors import RunnerError, SecurityError, as_runner_error
from runner.kernels.host import HostPlatform
from runner.kernels.platform import Platform
from runner.kernels.registry import Registry

log = logging.getLogger(__name__)

Array = NDArray[Any]

SourceMaker = Callable[[Mapping[str, Any]], InputSource]


class Worker:
    """The state of a worker and its reaction to each message."""

    def __init__(
        self,
        endpoint: Endpoint,
        mailbox: Mailbox,
        address: str,
        peers: Sequence[str],
        make_source: SourceMaker,
        registry: Registry,
        progress: Progress,
    ) -> None:
        """``mailbox`` reads from ``endpoint``, which is connected to the master at ``address``.

        peers: names of all workers and parameter servers, including this one.
        """
        self._endpoint = endpoint
        self._mailbox = mailbox
        self._address = address
        self._peers = peers
        self._make_source = make_source
        self._registry = registry
        self._progress = progress
        self._use_platform(HostPlatform(registry.join))
        self._source: InputSource | None = None
        self._check_finite: bool | None = None
        self._links: Links | None = None
        self._plans: dict[str, _LoadedPlan] = {}
        self._trace: _Trace | None = None
        self._launched = LaunchQueue(mailbox)
        self._leave_communicator: Callable[[], None] = lambda: None

    def serve(self, check_heartbeat: Callable[[], None]) -> int:
        """Handle messages until shutdown; an error is reported to the master and ends the worker."""
        try:
            while True:
                check_heartbeat()
                launched, wait_s = self._launched.first()
                request = self._mailbox.next(wait_s)
                if request is not None:
                    self._answer(request)
                elif launched is not None and wait_s == 0.0:
                    self._begin(launched)
        except Stopped:
            self._endpoint.send(MASTER, Bye())
            # Only on shutdown, when all workers leave: after an error others may wait for ever in the communicator.
            self._leave_communicator()
            return 0
        except (RunnerError, MemoryError) as raised:
            error = as_runner_error(raised)
            log.error("%s", error)
            self._endpoint.send(MASTER, Failed.of(error))
            return error.exit_code
        except Exception as error:
            # A defect: report it to the master before the interpreter prints the traceback.
            self._endpoint.send(MASTER, Failed.of(error))
            raise
        finally:
            close = getattr(self._source, "close", None)
            if close is not None:
                close()

    def _answer(self, request: Request) -> None:
        received = request.received
        match received.message:
            case Setup():
                self._set_up(decode_document(received.frames[0]))
            case Load(plan=plan):
                self._load(plan, decode_document(received.frames[0]))
            case Run(plan=plan, step=step, delay_s=delay_s):
                self._run(plan, step, delay_s, {})
            case Launch() as launched:
                loaded = self._plan(launched.plan, launched.step)
                self._launched.add(QueuedLaunch(launched, loaded.received, request.read_at))
            case StartTrace():
                self._start_trace(read_plans(decode_document(received.frames[0])))
            case StopTrace():
                self._stop_trace()
            case Shutdown():
                self._synchronize()
                raise Stopped
            case _:
                raise SecurityError(f"{received.message.kind!r} from {received.source}: unexpected message")

    def _set_up(self, document: object) -> None:
        self._progress.enter(SETUP, 0)
        if self._check_finite is not None:
            raise SecurityError("setup refused: expected once, received again")
        setup = WorkerSetup.from_document(document)
        if setup.link is not None:
            self._links = Links(setup.link, self._mailbox.clock)
        for peer in self._peers:
            if peer != self._endpoint.name:
                self._endpoint.connect(peer, sibling_address(self._address, peer))
        if (gpu := setup.gpus.get(self._endpoint.name)) is not None:
            self._registry = load_gpu_kernels(setup.use, gpu)
            self._use_platform(self._registry.platforms["gpu"](gpu))
        if setup.communicator is not None and setup.communicator.join(self._registry, self._endpoint.name):
            self._leave_communicator = self._registry.communicators[setup.communicator.library].leave
        self._check_finite = setup.check_finite
        if setup.source is not None:
            self._source = self._make_source(setup.source)
        self._progress.enter(IDLE, 0)

    def _synchronize(self) -> None:
        """Wait for the device; raises RunnerError if it has failed since the last synchronization."""
        try:
            self._variables.platform.synchronize()
        except RuntimeError as error:
            raise RunnerError(f"{self._endpoint.name}: the device failed: {error}") from error

    def _use_platform(self, platform: Platform) -> None:
        """Use a platform for computing, with an empty store and arena."""
        self._variables = VariableStore(platform)
        self._arena = Arena(platform)

    def _load(self, plan: str, document: object) -> None:
        self._progress.enter(LOAD, 0)
        if self._check_finite is None or plan in self._plans:
            raise SecurityError(f"plan {plan!r} refused: expected a new one, after setup")
        assignment = Assignment.from_document(document, self._registry)
        own_name = self._endpoint.name
        if peer_of(assignment.device) != own_name:
            raise SecurityError(f"plan {plan!r} refused: for {assignment.device}, expected the device of {own_name}")
        readers = {owner: ArenaReader(spec) for owner, spec in assignment.arenas.items() if owner != own_name}
        writer = ArenaWriter(assignment.arenas[own_name])
        rendezvous = WireRendezvous(plan, self._endpoint, self._mailbox, writer, readers, self._links)
        executor = DeviceExecutor(
            assignment.plan,
            self._registry,
            self._variables,
            self._arena,
            wires_of(self._variables.platform, rendezvous),
            check_finite=self._check_finite,
        )
        shared = SharedReading(self._source, {assignment.device: assignment.inputs})
        inputs = ReadAhead(executor, partial(shared.read, assignment.device))
        received = senders(assignment.plan)
        self._mailbox.expect(plan, received)
        self._plans[plan] = _LoadedPlan(assignment, executor, inputs, writer, readers[MASTER], frozenset(received))
        self._endpoint.send(MASTER, Loaded(plan))
        self._progress.enter(IDLE, 0)

    def _begin(self, launched: QueuedLaunch) -> None:
        delay_s, turn = self._launched.begin(launched)
        self._run(launched.message.plan, launched.message.step, delay_s, {TURN: float(turn)})

    def _plan(self, plan: str, step: int) -> "_LoadedPlan":
        if plan not in self._plans:
            raise SecurityError(f"step {step} of plan {plan!r} refused: loaded are {', '.join(self._plans) or 'none'}")
        return self._plans[plan]

    def _run(self, plan: str, step: int, delay_s: float, stats: Mapping[str, float]) -> None:
        self._progress.enter(STEP, step)
        loaded = self._plan(plan, step)
        if delay_s:
            loaded.executor.before_run(step, DELAY, lambda: self._mailbox.wait(delay_s, step))
        feeds = self._feeds(loaded, step)
        for tensor, value in loaded.inputs.run(step, feeds).items():
            loaded.writer.put(fetch_key(tensor), value)
        self._endpoint.send(MASTER, Done(plan, step, {PEAK_MEMORY: float(peak_rss_bytes()), **stats}))
        self._progress.enter(IDLE, step)

    def _feeds(self, loaded: "_LoadedPlan", step: int) -> dict[Tensor, Array]:
        """Return all feeds of a step: inputs of this worker's source, and the master's values in shared memory."""
        read = loaded.inputs.read(step)
        from_master = [feed for feed in loaded.assignment.plan.feeds if feed.tensor not in read]
        feeds = loaded.feeds
        fed = {each.tensor: feeds.read(feed_key(each.tensor), each.spec.dtype, each.spec.shape) for each in from_master}
        return {**read, **fed}

    def _start_trace(self, plans: Sequence[str]) -> None:
        self._progress.enter(LOAD, 0)
        unknown = [plan for plan in plans if plan not in self._plans]
        if unknown or self._trace is not None:
            reason = f"plans {', '.join(unknown)} are not loaded" if unknown else "a trace is being recorded"
            raise SecurityError(f"trace of {len(plans)} plans refused: {reason}")
        executors = tuple(self._plans[plan].executor for plan in plans)
        self._trace = _Trace(Recorder(), executors)
        for number, executor in enumerate(executors):
            executor.record(self._trace.recorder, number)
        self._progress.enter(IDLE, 0)

    def _stop_trace(self) -> None:
        self._progress.enter(LOAD, 0)
        if self._trace is None:
            raise SecurityError("end of a trace refused: no trace is being recorded")
        trace, self._trace = self._trace, None
        for executor in trace.executors:
            executor.record(None)
        self._endpoint.send(MASTER, Traced(), [encode_document(to_document(trace.recorder.spans))])
        self._progress.enter(IDLE, 0)


@dataclass(frozen=True)
class _LoadedPlan:
    """A plan ready to run. inputs: reads its inputs. writer: this worker's arena. feeds: the master's arena. received:
    keys of the tensors that it receives."""

    assignment: Assignment
    executor: DeviceExecutor
    inputs: ReadAhead
    writer: ArenaWriter
    feeds: ArenaReader
    received: frozenset[str]


@dataclass(frozen=True)
class _Trace:
    """An active trace of the plans of these executors."""

    recorder: Recorder
    executors: tuple[DeviceExecutor, ...]
