"""A session whose devices live in worker processes: the master plans, starts, feeds and waits; it computes nothing."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from runner import errors
from runner.engine.assignment import Assignment, feed_key, feed_sizes, fetch_key, sent_sizes
from runner.engine.compile import Compiled, Signature, compile_signature
from runner.engine.device import Cluster, DeviceName
from runner.engine.executor import libraries_of
from runner.engine.plan import DevicePlan
from runner.engine.processes import Supervisor, thread_budget, worker_argv
from runner.engine.program import Client, Program
from runner.engine.session import client_of, expand_feeds, peak_rss_bytes
from runner.engine.tensor import Tensor
from runner.engine.transport.address import inbox_address
from runner.engine.transport.documents import encode_document
from runner.engine.transport.endpoint import Identity, Limits, Received
from runner.engine.transport.heartbeat_monitor import HeartbeatMonitor
from runner.engine.transport.messages import (
    Bye,
    Done,
    Failed,
    Heartbeat,
    Hello,
    Load,
    Loaded,
    Message,
    Run,
    Setup,
    Shutdown,
    Welcome,
)
from runner.engine.transport.names import HEARTBEAT_ROLE, MASTER, MASTER_ROLE, peer_name, split_name
from runner.engine.transport.private_directory import PrivateDirectory
from runner.engine.transport.shared_memory import ArenaReader, ArenaWriter, create_arena, unlink_arena
from runner.engine.transport.text import printable_lines
from runner.engine.transport.tokens import new_token, write_token
from runner.engine.transport.zmq_context import open_context
from runner.engine.transport.zmq_endpoint import ZmqEndpoint
from runner.errors import ClusterError, RunnerError
from runner.kernels.registry import Registry

log = logging.getLogger(__name__)

Array = NDArray[Any]

_LOOK_S = 0.5
_JOIN_S = 60.0
_LEAVE_S = 2.0
_SEND_S = 1.0
_SPARE_MESSAGES = 256
_MOST_LINES = 40
_MOST_COLUMNS = 1000


class ClusterSession:
    """Runs a program on worker processes of this machine. A context manager; entering starts the workers.

    source: plain description that each worker builds its input source from, or None. threads: kernel threads of
    each worker. logs: folder for the workers' logs. epoch: number of this start of run ``run_id``. monitor: judges
    heartbeats; with its default limits if None.

    Raises ClusterError within two seconds of a worker's death, naming it, its exit code and the last lines of its
    log; what a worker itself reported is raised as its own class, with the worker named.
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
    ) -> None:
        self._program = program
        self._cluster = cluster
        self._registry = registry
        self._setup = {"source": source, "check_finite": check_finite}
        self._identity = Identity(run_id, epoch, MASTER_ROLE, 0, new_token())
        self._logs = logs
        self._threads = threads
        self._workers = {peer_of(device.name): device.name for device in cluster.devices}
        self._plans: dict[Signature, _LoadedPlan] = {}
        self._sent = dict.fromkeys(self._workers, 0)
        self._peaks = dict.fromkeys(self._workers, 0)
        self._monitor = monitor or HeartbeatMonitor()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._dismiss()
        finally:
            self._stack.close()

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Run one step of a client: one Run message to each worker that takes part; see :class:`Session`."""
        asked = client_of(self._program, client)
        plan = self._load(asked)
        self._feed(plan, expand_feeds(asked, feeds or {}))
        for worker in plan.devices:
            self._tell(worker, Run(plan.name, step, {}))
        self._await(set(plan.devices), lambda message: isinstance(message, Done) and message.step == step)
        for worker, device_plan in plan.devices.items():
            self._sent[worker] += device_plan.sent_bytes
        return {name: self._fetched(plan, tensor) for name, tensor in asked.fetches.items()}

    def sent_bytes(self) -> list[int]:
        """Bytes of tensors each worker has sent to others so far."""
        return list(self._sent.values())

    def peak_memory_bytes(self) -> dict[str, int]:
        """Peak resident memory of the master and, as of its last step, of each worker."""
        return {"master": peak_rss_bytes(), **self._peaks}

    def libraries(self) -> dict[str, list[str]]:
        """Kernel libraries in use by device type."""
        found: set[str] = set()
        for plan in self._plans.values():
            for device_plan in plan.devices.values():
                found |= libraries_of(device_plan, self._registry)
        return {"cpu": sorted(found)}

    def close(self) -> None:
        """End the workers and release everything."""
        self.__exit__(None, None, None)

    def _start(self) -> None:
        """Start the workers, have them join, and tell each what it needs to know."""
        directory = self._stack.enter_context(PrivateDirectory.create())
        self._directory = directory.path
        context = self._stack.enter_context(open_context(3 * len(self._workers) + 4))
        limits = Limits(peers=len(self._workers), queued_messages=_SPARE_MESSAGES, send_timeout_s=_SEND_S)
        address = inbox_address(directory.path, MASTER)
        self._endpoint = self._stack.enter_context(ZmqEndpoint(context, self._identity, address, limits))
        self._supervisor = self._stack.enter_context(Supervisor())
        for worker in self._workers:
            self._start_worker(worker, address)
        self._endpoint.wake_on(self._supervisor.pidfds)
        self._await(set(self._workers), lambda message: isinstance(message, Hello), limit_s=_JOIN_S)
        for worker in self._workers:
            self._endpoint.connect(worker, inbox_address(directory.path, worker))
            self._tell(worker, Welcome())
        setup = encode_document(self._setup)
        for worker in self._workers:
            self._tell(worker, Setup(), setup)

    def _start_worker(self, worker: str, address: str) -> None:
        token_file = write_token(self._directory, worker, self._identity.token)
        argv = [
            *worker_argv(address, split_name(worker)[1], token_file),
            *("--run", self._identity.run, "--epoch", str(self._identity.epoch)),
            *("--peers", str(len(self._workers)), "--queued-messages", str(self._messages_per_step())),
        ]
        self._monitor.watch(worker, time.monotonic())
        self._supervisor.start(
            worker, argv, self._logs / f"{worker}.log", {**os.environ, **thread_budget(self._threads)}
        )

    def _messages_per_step(self) -> int:
        """Most messages one worker can find waiting: what the busiest sends in a step, and the master's."""
        compiled = self._compile(self._program.clients["train"].signature)
        sends = [sum(n.op == "send" for n in part.graph) for part in compiled.parts.values()]
        return 2 * max(sends) + _SPARE_MESSAGES

    def _compile(self, signature: Signature) -> Compiled:
        return compile_signature(self._program.graph, signature, self._cluster, self._registry)

    def _load(self, client: Client) -> _LoadedPlan:
        """Hand each worker its part of a client, once; the plan is cached by signature."""
        signature = client.signature
        if signature in self._plans:
            return self._plans[signature]
        compiled = self._compile(signature)
        plans = {device: part.plan(device) for device, part in compiled.parts.items()}
        inputs = {
            device: tuple(s for s in client.inputs if s.tensor in part.feeds)
            for device, part in compiled.parts.items()
        }
        name = f"{client.name}-{len(self._plans)}"
        feed_bytes: dict[str, int] = {}
        for device, plan in plans.items():
            feed_bytes.update(feed_sizes(plan, inputs[device]))
        arenas = {
            owner: create_arena(self._directory, f"{name} {owner}", owner, self._identity.epoch, sizes)
            for owner, sizes in {
                MASTER: feed_bytes,
                **{peer_of(device): sent_sizes(plan) for device, plan in plans.items()},
            }.items()
        }
        for device, part in compiled.parts.items():
            assignment = Assignment(device, part, inputs[device], arenas)
            document = encode_document(assignment.to_document())
            self._tell(peer_of(device), Load(name), document)
        loaded = _LoadedPlan(
            name,
            {peer_of(device): plan for device, plan in plans.items()},
            compiled,
            ArenaWriter(arenas[MASTER]),
            {owner: ArenaReader(spec) for owner, spec in arenas.items() if owner != MASTER},
            frozenset(feed_bytes),
        )
        self._await(set(loaded.devices), lambda message: isinstance(message, Loaded))
        for spec in arenas.values():
            unlink_arena(spec)
        self._plans[signature] = loaded
        return loaded

    def _feed(self, plan: _LoadedPlan, feeds: Mapping[Tensor, Any]) -> None:
        for tensor, value in feeds.items():
            if feed_key(tensor) in plan.fed:
                spec = self._program.graph.spec(tensor)
                array = np.asarray(value)
                if array.shape != spec.shape or array.dtype.name != spec.dtype:
                    raise RunnerError(
                        f"feed {tensor}: came {array.dtype.name}{list(array.shape)}, expected {spec}"
                    )
                plan.writer.put(feed_key(tensor), array)

    def _fetched(self, plan: _LoadedPlan, tensor: Tensor) -> Array:
        """Copy a fetched value out of shared memory, where the next step will write."""
        device, local = plan.compiled.location[tensor]
        spec = plan.compiled.parts[device].graph.spec(local)
        view = plan.readers[peer_of(device)].read(fetch_key(local), spec.dtype, spec.shape)
        return view.copy()

    def _tell(self, worker: str, message: Message, *documents: bytes) -> None:
        """Send a message; where that fails because the worker is gone, say why it is."""
        try:
            self._endpoint.send(worker, message, documents)
        except ClusterError:
            while (received := self._endpoint.receive(0)) is not None:
                self._note(received, time.monotonic())
            self._supervisor.check()
            raise

    def _await(
        self, workers: set[str], awaited: Callable[[Message], bool], limit_s: float | None = None
    ) -> None:
        """Read messages until one that is awaited has come from each worker.

        Raises ClusterError when a worker dies, is silent or stuck, or the limit passes; a worker's own error.
        """
        missing = set(workers)
        deadline = None if limit_s is None else time.monotonic() + limit_s
        look_at = time.monotonic() + _LOOK_S
        while missing:
            received = self._endpoint.receive(max(0.0, look_at - time.monotonic()))
            now = time.monotonic()
            if received is not None:
                if self._note(received, now) and awaited(received.message):
                    missing.discard(received.source)
                continue
            # Only an empty inbox is judged: what a dying worker said comes before how it died.
            self._supervisor.check()
            self._judge(now)
            look_at = now + _LOOK_S
            if deadline is not None and now > deadline:
                raise ClusterError(f"{', '.join(sorted(missing))} did not answer within {limit_s:g} s")

    def _note(self, received: Received, now: float) -> bool:
        """Take in what is no answer; return whether the message may be one."""
        match received.message:
            case Heartbeat(section=section, step=step):
                self._monitor.heartbeat(
                    peer_name("worker", split_name(received.source)[1]), section, step, now
                )
                return False
            case Failed(error=error, text=text):
                said = "\n".join(printable_lines(text, lines=_MOST_LINES, width=_MOST_COLUMNS))
                raise _as_raised(error, f"{received.source}: {said}")
            case Hello(role=role) if role == HEARTBEAT_ROLE:
                return False
            case Done(stats=stats):
                self._peaks[received.source] = int(stats["peak_memory_bytes"])
        return True

    def _judge(self, now: float) -> None:
        verdicts = self._monitor.tick(now)
        if verdicts:
            self._supervisor.workers[verdicts[0].worker].dump_stack()
            log_path = self._supervisor.workers[verdicts[0].worker].log_path
            raise ClusterError(f"{verdicts[0]}; the stacks of its threads are in {log_path}")

    def _dismiss(self) -> None:
        """Tell every worker to leave and give it time to; the supervisor ends who stays."""
        for worker in self._workers:
            self._tell(worker, Shutdown())
            self._supervisor.expect_exit(worker)
        self._await(set(self._workers), lambda message: isinstance(message, Bye), limit_s=_LEAVE_S)
        self._supervisor.wait_for_exit(_LEAVE_S)


@dataclass(frozen=True)
class _LoadedPlan:
    """A client that the workers hold: each worker's plan, and the shared memory it is fed and fetched through."""

    name: str
    devices: Mapping[str, DevicePlan]
    compiled: Compiled
    writer: ArenaWriter
    readers: Mapping[str, ArenaReader]
    fed: frozenset[str]


def peer_of(device: str) -> str:
    """Name of the peer that runs a device: its job and task."""
    name = DeviceName.parse(device)
    return peer_name(str(name.job), int(name.task or 0))


_CLASSES = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, RunnerError) and kind is not errors.Interrupted
}


def _as_raised(class_name: str, text: str) -> RunnerError:
    """The error a worker reported, in its own class where that is one of runner's."""
    return _CLASSES.get(class_name, RunnerError)(text)
