"""A session whose devices live in worker processes: the master plans, starts, feeds and waits; it computes nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from runner.engine.assignment import peer_of
from runner.engine.card_use import AS_USUAL
from runner.engine.compile import Signature
from runner.engine.conductor import Finished
from runner.engine.deferred import require_launchable, require_settled
from runner.engine.device import Cluster, DeviceName
from runner.engine.emulation import Emulation
from runner.engine.feeds import expand_feeds
from runner.engine.inputs import InputSlot
from runner.engine.meeting import meeting_of
from runner.engine.program import Client, Program
from runner.engine.program_plans import ProgramPlans
from runner.engine.remote_plan import RemotePlan
from runner.engine.remote_trace import RemoteTrace
from runner.engine.session import PEAK_MEMORY, TURN, peak_rss_bytes, require_no_trace, required_trace
from runner.engine.tensor import Tensor
from runner.engine.timeline import Timeline
from runner.engine.transport.documents import encode_document
from runner.engine.transport.endpoint import Identity
from runner.engine.transport.heartbeat_monitor import HeartbeatMonitor
from runner.engine.transport.messages import Done, Launch, Load, Loaded, Run
from runner.engine.transport.names import MASTER_ROLE, SERVER_ROLE, process_names, split_name
from runner.engine.transport.tokens import new_token
from runner.engine.worker_group import SPARE_MESSAGES, WorkerGroup, start_workers
from runner.engine.worker_setup import WorkerSetup
from runner.errors import RunnerError, SecurityError
from runner.kernels.registry import Registry

Array = NDArray[Any]


class ClusterSession:
    """Runs a program on worker processes of this machine. A context manager; entering starts the workers.

    source: plain description that each worker builds its input source from, or None. threads: kernel threads of
    each worker. logs: folder for the workers' logs. epoch: number of this start of run ``run_id``. monitor: judges
    heartbeats; with its default limits if None. emulation: waits added to transfers and steps; None for none.
    worker_options: more of the workers' command line, no secrets.

    Raises ResourceError where cards are to meet and cannot. Raises ClusterError within two seconds of a worker's death,
    naming it, its exit code and the last lines of its log; what a worker itself reported is raised as its own class,
    with the worker named.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        registry: Registry,
        source: Mapping[str, Any] | None,
        *,
        run_id: str,
        epoch: int,
        logs: Path,
        threads: int,
        check_finite: bool = False,
        monitor: HeartbeatMonitor | None = None,
        emulation: Emulation | None = None,
        worker_options: Sequence[str] = (),
    ) -> None:
        self._program = program
        self._planned = ProgramPlans(program, cluster, registry)
        self._setup = WorkerSetup(
            source,
            check_finite,
            None if emulation is None else emulation.link,
            {peer_of(device.name): device.card for device in cluster.devices if device.card is not None},
            next((device.use for device in cluster.devices if device.card is not None), AS_USUAL),
            meeting_of(cluster, registry),
        )
        self._emulation = emulation or Emulation()
        self._identity = Identity(run_id, epoch, MASTER_ROLE, 0, new_token())
        self._logs = logs
        self._threads = threads
        self._worker_options = worker_options
        self._monitor = monitor or HeartbeatMonitor()
        self._workers = _worker_names(cluster)
        self._sent = dict.fromkeys(self._workers, 0)
        self._peaks = dict.fromkeys(self._workers, 0)
        self._libraries: dict[str, set[str]] = {device.type: set() for device in cluster.devices}
        self._plans: dict[tuple[Signature, tuple[InputSlot, ...]], RemotePlan] = {}
        self._under_way: dict[str, _UnderWay] = {}
        self._by_plan: dict[str, _UnderWay] = {}
        self._ended: deque[tuple[str, Done]] = deque()
        self._training_is_loaded = False
        self._trace: RemoteTrace | None = None
        self._stack = ExitStack()
        self._started: WorkerGroup | None = None

    def __enter__(self) -> Self:
        self._started = self._stack.enter_context(
            start_workers(
                self._workers,
                self._identity,
                encode_document(self._setup.to_document()),
                logs=self._logs,
                threads=self._threads,
                queued_messages=self._messages_per_step() + SPARE_MESSAGES,
                monitor=self._monitor,
                options=self._worker_options,
            )
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Shared memory is given back with its last mapping, and those of this process are the plans'.
        self._plans.clear()
        self._started = None
        self._stack.__exit__(kind, error, trace)

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Run one step of a client: one Run message to each worker that takes part; see :class:`Session`."""
        begin_ns = time.monotonic_ns()
        require_settled(f"client {client!r} was run", self._under_way)
        asked = self._planned.client(client)
        fed = expand_feeds(asked, feeds or {})
        plan = self._load(asked)
        number = self._begin(plan, fed)
        for worker in plan.plans:
            self._group.tell(worker, Run(plan.name, step, {}, self._delay_s(asked, worker, step)))
        done = self._group.gather(plan.plans, Done, lambda answer: (answer.plan, answer.step) == (plan.name, step))
        for worker, answer in done.items():
            self._note(worker, plan, answer)
        fetched = {name: plan.fetch(tensor) for name, tensor in asked.fetches.items()}
        if self._trace is not None:
            self._trace.runs.note(client, number, step, begin_ns)
        return fetched

    def launch(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> None:
        """Begin one step of a client; see :class:`~runner.engine.conductor.Clients`."""
        asked = self._planned.client(client)
        require_launchable(asked, self._under_way)
        begin_ns = time.monotonic_ns()
        fed = expand_feeds(asked, feeds or {})
        if not self._under_way and not self._training_is_loaded:
            # All at once: none can be loaded while another is under way.
            for each in self._program.training:
                self._load(each)
            self._training_is_loaded = True
        plan = self._load(asked)
        number = self._begin(plan, fed)
        self._under_way[client] = self._by_plan[plan.name] = _UnderWay(asked, plan, step, number, begin_ns)
        for worker in plan.plans:
            self._group.tell(worker, Launch(plan.name, step, self._delay_s(asked, worker, step)))

    def finished(self) -> Finished:
        """Wait for the next ending; see :class:`~runner.engine.conductor.Clients`."""
        if not self._under_way:
            raise RunnerError("no client is under way: launch one first")
        while True:
            worker, answer = self._ended.popleft() if self._ended else self._group.next(Done)[:2]
            run = self._by_plan.get(answer.plan)
            if run is None or answer.step != run.step or worker not in run.plan.plans or worker in run.turns:
                said = f"step {answer.step} of plan {answer.plan!r}"
                raise SecurityError(f"{worker} finished {said}, which is not under way there")
            self._note(worker, run.plan, answer)
            run.turns[worker] = _stat(worker, answer, TURN)
            if run.turns.keys() == run.plan.plans.keys():
                del self._under_way[run.client.name], self._by_plan[answer.plan]
                fetches = {name: run.plan.fetch(tensor) for name, tensor in run.client.fetches.items()}
                turns = {run.plan.assignments[peer].device: turn for peer, turn in run.turns.items()}
                if self._trace is not None:
                    self._trace.runs.note(run.client.name, run.number, run.step, run.begin_ns, launched=True)
                return Finished(run.client.name, run.step, fetches, turns)

    def start_trace(self, clients: Collection[str]) -> None:
        """Have every worker record runs of some clients; see :class:`~runner.engine.session.Session`."""
        require_no_trace(self._trace, clients)
        plans = {client: self._load(self._planned.client(client)) for client in clients}
        self._trace = RemoteTrace(self._group, plans)

    def stop_trace(self) -> Timeline:
        """Collect what the workers recorded; see :class:`~runner.engine.session.Session`."""
        trace, self._trace = required_trace(self._trace), None
        return trace.stop(self._ended)

    def sent_bytes(self) -> list[int]:
        """Bytes of tensors each process has sent to others so far, in the order of the devices."""
        return list(self._sent.values())

    def peak_memory_bytes(self) -> dict[str, int]:
        """Peak resident memory of the master and, as of its last step, of each worker."""
        return {"master": peak_rss_bytes(), **self._peaks}

    def libraries(self) -> dict[str, list[str]]:
        """Kernel libraries in use by device type."""
        return {device_type: sorted(found) for device_type, found in self._libraries.items()}

    def close(self) -> None:
        """End the workers and release everything. May be called again."""
        self.__exit__(None, None, None)

    @property
    def _group(self) -> WorkerGroup:
        if self._started is None:
            raise RunnerError("the session has no workers: it is used inside its `with` block")
        return self._started

    def _load(self, client: Client) -> RemotePlan:
        """Hand each worker its part of a client, once; the plan is cached by signature and what workers read."""
        signature = client.signature
        key = signature, client.inputs
        plan = self._plans.get(key)
        if plan is None:
            # Its answers are waited for, and none of a step that is under way may come meanwhile.
            require_settled(f"client {client.name!r} was loaded", self._under_way)
            group = self._group
            name = f"{client.name}-{len(self._plans)}"
            plan = RemotePlan(
                name,
                client,
                self._planned.compiled(signature),
                self._planned.plans(signature),
                self._planned.layouts,
                group.directory,
                self._identity.epoch,
            )
            for worker, assignment in plan.assignments.items():
                group.tell(worker, Load(name), encode_document(assignment.to_document()))
            group.gather(plan.plans, Loaded, lambda answer: answer.plan == name)
            plan.unlink()
            self._plans[key] = plan
            for device_plan in plan.plans.values():
                self._libraries[DeviceName.parse(device_plan.device).type or ""] |= device_plan.libraries
        return plan

    def _begin(self, plan: RemotePlan, fed: Mapping[Tensor, Any]) -> int:
        """Feed a plan that is about to be run; return how many of its runs had begun before."""
        plan.feed(fed)
        plan.begun += 1
        return plan.begun - 1

    def _delay_s(self, client: Client, worker: str, step: int) -> float:
        return self._emulation.delay_s(worker, step) if client.slowed else 0.0

    def _note(self, worker: str, plan: RemotePlan, answer: Done) -> None:
        self._sent[worker] += plan.plans[worker].sent_bytes
        self._peaks[worker] = _stat(worker, answer, PEAK_MEMORY)

    def _messages_per_step(self) -> int:
        """Most messages one worker can have sent another before that one reads: two steps of the busiest plan.

        Of the deferred clients each may be under way.
        """
        sends = {
            client.name: max(
                sum(node.op == "send" for node in part.graph)
                for part in self._planned.compiled(client.signature).parts.values()
            )
            for client in self._program.clients.values()
        }
        at_once = sum(sends[client.name] for client in self._program.training)
        return 2 * max(at_once, *sends.values(), 0)


@dataclass(frozen=True)
class _UnderWay:
    """A launched step. number, begin_ns: of its run. turns: of the workers that have finished it."""

    client: Client
    plan: RemotePlan
    step: int
    number: int
    begin_ns: int
    turns: dict[str, int] = field(default_factory=dict)


def _worker_names(cluster: Cluster) -> list[str]:
    """The processes of a cluster's devices; raises ValueError unless each has one and each job's count from 0."""
    names = [peer_of(device.name) for device in cluster.devices]
    servers = sum(split_name(name)[0] == SERVER_ROLE for name in names)
    expected = process_names(len(names) - servers, servers)
    if sorted(names) != sorted(expected):
        raise ValueError(f"devices of {', '.join(names)}: expected one device for each of {', '.join(expected)}")
    return names


def _stat(worker: str, answer: Done, name: str) -> int:
    if name not in answer.stats:
        raise SecurityError(f"{worker} finished step {answer.step} without saying its {name!r}")
    return int(answer.stats[name])
