"""A worker process: it joins the master, keeps the variables of its device and runs its part of every step.

A parameter server is such a process too: only the job in its name differs.

One thread does everything but heartbeats: it waits for a message, acts on it, and while a step waits for a tensor
it keeps reading its inbox. ZeroMQ's own thread moves bytes meanwhile, so sends overlap with kernels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from runner.engine.assignment import Assignment, feed_key, fetch_key, peer_of, senders
from runner.engine.executor import DeviceExecutor
from runner.engine.inputs import InputSource, read_inputs, share_of
from runner.engine.kernel_table import load_card_kernels
from runner.engine.launched_steps import LaunchedStep, LaunchedSteps
from runner.engine.links import Links
from runner.engine.lookahead import Lookahead
from runner.engine.mailbox import Mailbox, Request, Stopped
from runner.engine.platforms import wires_of
from runner.engine.recording import DELAY, Recorder, read_plans, to_document
from runner.engine.session import PEAK_MEMORY, TURN, peak_rss_bytes
from runner.engine.storage import Arena, VariableStore
from runner.engine.tensor import Tensor
from runner.engine.transport.address import sibling_address
from runner.engine.transport.documents import decode_document, encode_document
from runner.engine.transport.endpoint import Endpoint
from runner.engine.transport.heartbeat import Progress
from runner.engine.transport.messages import (
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
from runner.engine.transport.names import MASTER
from runner.engine.transport.shared_memory import ArenaReader, ArenaWriter
from runner.engine.wire_rendezvous import WireRendezvous
from runner.engine.worker_setup import WorkerSetup
from runner.errors import RunnerError, SecurityError
from runner.kernels.host import HostPlatform
from runner.kernels.platform import Platform
from runner.kernels.registry import Registry

log = logging.getLogger(__name__)

Array = NDArray[Any]

SourceMaker = Callable[[Mapping[str, Any]], InputSource]


class Worker:
    """The state of a worker and what it does on each message."""

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

        peers: names of all workers and parameter servers, this one too.
        """
        self._endpoint = endpoint
        self._mailbox = mailbox
        self._address = address
        self._peers = peers
        self._make_source = make_source
        self._registry = registry
        self._progress = progress
        self._take(HostPlatform(registry.join))
        self._source: InputSource | None = None
        self._check_finite: bool | None = None
        self._links: Links | None = None
        self._plans: dict[str, _LoadedPlan] = {}
        self._trace: _Trace | None = None
        self._launched = LaunchedSteps(mailbox)
        self._leave: Callable[[], None] = lambda: None

    def serve(self, check_heartbeat: Callable[[], None]) -> int:
        """Answer messages until told to leave; an error is told to the master and ends the worker."""
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
            # Only where all leave: after an error nobody knows what others wait for, and the master ends them.
            self._leave()
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
                self._launched.add(LaunchedStep(launched, loaded.received, request.read_at))
            case StartTrace():
                self._start_trace(read_plans(decode_document(received.frames[0])))
            case StopTrace():
                self._stop_trace()
            case Shutdown():
                self._come_to_rest()
                raise Stopped
            case _:
                raise SecurityError(f"{received.message.kind!r} from {received.source} was not expected here")

    def _set_up(self, document: object) -> None:
        self._progress.enter(SETUP, 0)
        if self._check_finite is not None:
            raise SecurityError("setup refused: it came before, and is done once")
        setup = WorkerSetup.from_document(document)
        if setup.link is not None:
            self._links = Links(setup.link, self._mailbox.clock)
        for peer in self._peers:
            if peer != self._endpoint.name:
                self._endpoint.connect(peer, sibling_address(self._address, peer))
        if (card := setup.cards.get(self._endpoint.name)) is not None:
            self._registry = load_card_kernels(setup.use, card)
            self._take(self._registry.platforms["gpu"](card))
        if setup.meeting is not None and setup.meeting.join(self._registry, self._endpoint.name):
            self._leave = self._registry.meetings[setup.meeting.library].leave
        self._check_finite = setup.check_finite
        if setup.source is not None:
            self._source = self._make_source(setup.source)
        self._progress.enter(IDLE, 0)

    def _come_to_rest(self) -> None:
        """Wait for what the device still does; raises RunnerError where it has failed since it was last waited for."""
        try:
            self._variables.platform.settle()
        except RuntimeError as error:
            raise RunnerError(f"{self._endpoint.name}: the device failed: {error}") from error

    def _take(self, platform: Platform) -> None:
        """Compute on this platform, with its memory."""
        self._variables = VariableStore(platform)
        self._arena = Arena(platform)

    def _load(self, plan: str, document: object) -> None:
        self._progress.enter(LOAD, 0)
        if self._check_finite is None or plan in self._plans:
            raise SecurityError(f"plan {plan!r} refused: expected a new one, after setup")
        assignment = Assignment.from_document(document, self._registry)
        own = self._endpoint.name
        if peer_of(assignment.device) != own:
            raise SecurityError(f"plan {plan!r} refused: it is for {assignment.device}, expected the device of {own}")
        readers = {owner: ArenaReader(spec) for owner, spec in assignment.arenas.items() if owner != own}
        writer = ArenaWriter(assignment.arenas[own])
        rendezvous = WireRendezvous(plan, self._endpoint, self._mailbox, writer, readers, self._links)
        executor = DeviceExecutor(
            assignment.plan,
            self._registry,
            self._variables,
            self._arena,
            wires_of(self._variables.platform, rendezvous),
            check_finite=self._check_finite,
        )
        inputs = Lookahead(executor, lambda step: self._read(assignment, step))
        received = senders(assignment.plan)
        self._mailbox.expect(plan, received)
        self._plans[plan] = _LoadedPlan(assignment, executor, inputs, writer, readers[MASTER], frozenset(received))
        self._endpoint.send(MASTER, Loaded(plan))
        self._progress.enter(IDLE, 0)

    def _begin(self, launched: LaunchedStep) -> None:
        delay_s, turn = self._launched.begin(launched)
        self._run(launched.message.plan, launched.message.step, delay_s, {TURN: float(turn)})

    def _plan(self, plan: str, step: int) -> _LoadedPlan:
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
        self._endpoint.send(MASTER, Done(plan, step, {}, {PEAK_MEMORY: float(peak_rss_bytes()), **stats}))
        self._progress.enter(IDLE, step)

    def _read(self, assignment: Assignment, step: int) -> dict[Tensor, Array]:
        """What the worker's own source has for a step."""
        return read_inputs(assignment.inputs, step, lambda place: share_of(self._source, step, place))

    def _feeds(self, loaded: _LoadedPlan, step: int) -> dict[Tensor, Array]:
        """Everything a step is fed: read by the worker's own source, or put into shared memory by the master."""
        read = loaded.inputs.read(step)
        told = [feed for feed in loaded.assignment.plan.feeds if feed.tensor not in read]
        given = {
            feed.tensor: loaded.feeds.read(feed_key(feed.tensor), feed.spec.dtype, feed.spec.shape) for feed in told
        }
        return {**read, **given}

    def _start_trace(self, plans: Sequence[str]) -> None:
        self._progress.enter(LOAD, 0)
        unknown = [plan for plan in plans if plan not in self._plans]
        if unknown or self._trace is not None:
            what = f"plans {', '.join(unknown)} are not loaded" if unknown else "one is being made"
            raise SecurityError(f"trace of {len(plans)} plans refused: {what}")
        executors = tuple(self._plans[plan].executor for plan in plans)
        self._trace = _Trace(Recorder(), executors)
        for number, executor in enumerate(executors):
            executor.record(self._trace.recorder, number)
        self._progress.enter(IDLE, 0)

    def _stop_trace(self) -> None:
        self._progress.enter(LOAD, 0)
        if self._trace is None:
            raise SecurityError("end of a trace refused: none is being made")
        trace, self._trace = self._trace, None
        for executor in trace.executors:
            executor.record(None)
        self._endpoint.send(MASTER, Traced(), [encode_document(to_document(trace.recorder.noted))])
        self._progress.enter(IDLE, 0)


@dataclass(frozen=True)
class _LoadedPlan:
    """A plan ready to run. inputs: what it reads. writer: the worker's own arena. feeds: the master's. received: keys
    of what it receives."""

    assignment: Assignment
    executor: DeviceExecutor
    inputs: Lookahead
    writer: ArenaWriter
    feeds: ArenaReader
    received: frozenset[str]


@dataclass(frozen=True)
class _Trace:
    """What is being recorded: the plans of these executors."""

    recorder: Recorder
    executors: tuple[DeviceExecutor, ...]
