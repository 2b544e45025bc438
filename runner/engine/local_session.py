"""A session whose devices live in this process, in a thread each; launched clients run their parts one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from runner.engine.compile import Compiled, Signature
from runner.engine.conductor import Finished
from runner.engine.deferred import received_bytes, require_launchable, require_settled
from runner.engine.device import Cluster
from runner.engine.executor import DeviceExecutor
from runner.engine.feeds import expand_feeds, fed_array
from runner.engine.inputs import InputSource
from runner.engine.interleaving import Begin, End, Interleaving, Launched, VirtualTime
from runner.engine.local_trace import LocalTrace
from runner.engine.lookahead import Lookahead
from runner.engine.plan import DevicePlan
from runner.engine.platforms import platform_of, wires_of
from runner.engine.program import Client, Program
from runner.engine.program_plans import ProgramPlans
from runner.engine.rendezvous import LocalRendezvous
from runner.engine.session import peak_rss_bytes, require_no_trace, required_trace
from runner.engine.shared_reading import SharedReading
from runner.engine.storage import Arena, VariableStore
from runner.engine.tensor import Tensor
from runner.engine.timeline import ClientRuns, RecordedPlan, Timeline
from runner.engine.wires import Wires
from runner.errors import RunnerError
from runner.kernels.registry import Registry

Array = NDArray[Any]

PROCESS = "main"
"""What the one process of a ``LocalSession`` is called."""


class LocalSession:
    """All devices of the cluster live in this process; several run in a thread each and meet in memory.

    check_finite: name the first node that produces a value that is not finite. interleaving: orders the parts of
    launched clients, which run one by one; by default each takes a second of virtual time, and wires take none.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        registry: Registry,
        source: InputSource | None = None,
        *,
        check_finite: bool = False,
        timeout_s: float = 60.0,
        interleaving: Interleaving | None = None,
    ) -> None:
        self._planned = ProgramPlans(program, cluster, registry)
        self._registry = registry
        self._source = source
        self._check_finite = check_finite
        self._timeout_s = timeout_s
        self._cluster = cluster
        platforms = {device.name: platform_of(device, registry) for device in cluster.devices}
        self._stores = {device: VariableStore(platform) for device, platform in platforms.items()}
        self._arenas = {device: Arena(platform) for device, platform in platforms.items()}
        self._ready: dict[Signature, _Ready] = {}
        self._readings: dict[str, dict[str, Lookahead]] = {}
        self._sent = dict.fromkeys(self._stores, 0)
        self._trace: LocalTrace | None = None
        self._interleaving = interleaving or VirtualTime(lambda client, device, step: 1.0, lambda nbytes: 0.0)
        self._under_way: dict[str, _UnderWay] = {}
        self._begun = dict.fromkeys(self._stores, 0)
        self._pool: ThreadPoolExecutor | None = None
        if len(cluster.devices) > 1:
            count = len(cluster.devices)
            self._pool = ThreadPoolExecutor(count, thread_name_prefix="device", initializer=_threads_of_caller())

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Run one step of a client; see :class:`~runner.engine.session.Session`."""
        begin_ns = time.monotonic_ns()
        require_settled(f"client {client!r} was run", self._under_way)
        asked = self._planned.client(client)
        ready = self._prepare(asked.signature)
        fed = expand_feeds(asked, feeds or {})
        number = ready.begin()
        fetched: dict[tuple[str, Tensor], Array] = {}
        jobs = {device: self._fed(ready, asked, device, step, fed) for device in ready.feeds}
        for device, values in self._execute(ready, asked, step, jobs).items():
            fetched.update({(device, tensor): value for tensor, value in values.items()})
            self._sent[device] += ready.executors[device].plan.sent_bytes
        if self._trace is not None:
            self._trace.runs.note(client, number, step, begin_ns)
        return {name: fetched[ready.compiled.location[t]] for name, t in asked.fetches.items()}

    def launch(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> None:
        """Begin one step of a client; see :class:`~runner.engine.conductor.Clients`."""
        asked = self._planned.client(client)
        require_launchable(asked, self._under_way)
        ready = self._prepare(asked.signature)
        fed = ready.kept(expand_feeds(asked, feeds or {}))
        self._under_way[client] = _UnderWay(asked, ready, step, fed, ready.begin(), time.monotonic_ns())
        self._interleaving.launched(Launched(client, step, ready.received))

    def finished(self) -> Finished:
        """Run parts until a client ends; see :class:`~runner.engine.conductor.Clients`."""
        if not self._under_way:
            raise RunnerError("no client is under way: launch one first")
        while True:
            match self._interleaving.next():
                case Begin(client, device):
                    self._run_part(self._under_way[client], device)
                case End(client):
                    ended = self._under_way.pop(client)
                    location = ended.ready.compiled.location
                    if self._trace is not None:
                        self._trace.runs.note(client, ended.number, ended.step, ended.begin_ns, launched=True)
                    fetches = {name: ended.fetched[location[t]] for name, t in ended.client.fetches.items()}
                    return Finished(client, ended.step, fetches, ended.turns)

    def plans(self, client: str) -> dict[str, DevicePlan]:
        """The plans of a client by device."""
        ready = self._prepare(self._planned.client(client).signature)
        return {device: executor.plan for device, executor in ready.executors.items()}

    def start_trace(self, clients: Collection[str]) -> None:
        """Record runs of some clients; see :class:`~runner.engine.session.Session`."""
        require_no_trace(self._trace, clients)
        trace = self._trace = LocalTrace(PROCESS, ClientRuns(PROCESS, clients))
        for client in clients:
            ready = self._prepare(self._planned.client(client).signature)
            for device, executor in ready.executors.items():
                trace.add(device, RecordedPlan(client, executor.plan, ready.compiled.parts[device].graph), executor)

    def stop_trace(self) -> Timeline:
        """Return what was recorded; see :class:`~runner.engine.session.Session`."""
        trace, self._trace = required_trace(self._trace), None
        return trace.stop()

    def sent_bytes(self) -> list[int]:
        """Bytes sent so far; see :class:`~runner.engine.session.Session`."""
        return list(self._sent.values())

    def peak_memory_bytes(self) -> dict[str, int]:
        """Peak resident memory of this process; see :class:`~runner.engine.session.Session`."""
        return {PROCESS: peak_rss_bytes()}

    def libraries(self) -> dict[str, list[str]]:
        """Kernel libraries in use; see :class:`~runner.engine.session.Session`."""
        found: dict[str, set[str]] = {device.type: set() for device in self._cluster.devices}
        for ready in self._ready.values():
            for device, executor in ready.executors.items():
                found[self._cluster.device(device).type] |= executor.plan.libraries
        return {device_type: sorted(names) for device_type, names in found.items()}

    def close(self) -> None:
        """Stop the device threads. Raises RunnerError where a device has failed since it was last waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for device, store in self._stores.items():
            store.platform.enter()
            try:
                store.platform.settle()
            except RuntimeError as error:
                raise RunnerError(f"{device}: the device failed: {error}") from error

    def _fed(
        self, ready: _Ready, client: Client, device: str, step: int, fed: Mapping[Tensor, Array]
    ) -> dict[Tensor, Array]:
        """What one device is fed in a step: what the caller gave, and what the input source has."""
        given = {tensor: fed[tensor] for tensor in ready.feeds[device] if tensor in fed}
        return {**given, **self._reading(ready, client)[device].read(step)}

    def _reading(self, ready: _Ready, client: Client) -> Mapping[str, Lookahead]:
        """What reads the inputs of a client for each device."""
        if client.name not in self._readings:
            slots = {
                device: [slot for slot in client.inputs if slot.tensor in fed] for device, fed in ready.feeds.items()
            }
            shared = SharedReading(self._source, slots)
            self._readings[client.name] = {
                device: Lookahead(executor, partial(shared.read, device))
                for device, executor in ready.executors.items()
            }
        return self._readings[client.name]

    def _run_part(self, run: _UnderWay, device: str) -> None:
        executor = run.ready.executors[device]
        run.turns[device] = self._begun[device]
        self._begun[device] += 1
        values = executor.run(run.step, self._fed(run.ready, run.client, device, run.step, run.fed))
        run.fetched.update({(device, tensor): value for tensor, value in values.items()})
        self._sent[device] += executor.plan.sent_bytes

    def _prepare(self, signature: Signature) -> _Ready:
        ready = self._ready.get(signature)
        if ready is None:
            rendezvous = LocalRendezvous(self._timeout_s)
            executors = {
                device: DeviceExecutor(
                    plan,
                    self._registry,
                    self._stores[device],
                    self._arenas[device],
                    self._wires(device, rendezvous),
                    check_finite=self._check_finite,
                )
                for device, plan in self._planned.plans(signature).items()
            }
            ready = _Ready(self._planned.compiled(signature), executors, rendezvous)
            self._ready[signature] = ready
        return ready

    def _wires(self, device: str, rendezvous: LocalRendezvous) -> Wires:
        own = self._cluster.device(device).type
        alike = frozenset(each.name for each in self._cluster.devices if each.type == own)
        return wires_of(self._stores[device].platform, rendezvous, rendezvous, alike)

    def _execute(
        self, ready: _Ready, client: Client, step: int, jobs: Mapping[str, Mapping[Tensor, Array]]
    ) -> dict[str, dict[Tensor, Array]]:
        readings = self._reading(ready, client)
        if self._pool is None or len(readings) == 1:
            return {device: each.run(step, jobs[device]) for device, each in readings.items()}

        def guarded(device: str) -> dict[Tensor, Array]:
            try:
                return readings[device].run(step, jobs[device])
            except BaseException as error:
                ready.rendezvous.abort(error)
                raise

        running = {device: self._pool.submit(guarded, device) for device in ready.executors}
        failures = [error for future in running.values() if (error := future.exception()) is not None]
        if failures:
            raise ready.rendezvous.reset() or failures[0]
        return {device: future.result() for device, future in running.items()}


def _threads_of_caller() -> Callable[[], None]:
    """What gives another thread of Python as many threads for kernels as the caller has.

    OpenMP counts them for each. Plans are made by the caller, memory to work in for each of its threads included, and
    are bound anew by the thread of a device where the arena has grown.
    """
    pools = ThreadpoolController().select(user_api="openmp").lib_controllers
    numbers = [pool.num_threads for pool in pools]

    def take() -> None:
        for pool, number in zip(pools, numbers, strict=True):
            pool.set_num_threads(number)

    return take


class _Ready:
    """A signature made executable. feeds, received: by device, what it is fed, and bytes by the device that sends."""

    def __init__(
        self, compiled: Compiled, executors: Mapping[str, DeviceExecutor], rendezvous: LocalRendezvous
    ) -> None:
        self.compiled = compiled
        self.executors = executors
        self.rendezvous = rendezvous
        self.feeds = {device: {feed.tensor for feed in each.plan.feeds} for device, each in executors.items()}
        self._begun = 0
        self.received = {device: received_bytes(each.plan) for device, each in executors.items()}
        self._specs = {feed.tensor: feed.spec for each in executors.values() for feed in each.plan.feeds}

    def begin(self) -> int:
        """It is about to be run; returns how many of its runs had begun before."""
        self._begun += 1
        return self._begun - 1

    def kept(self, fed: Mapping[Tensor, Any]) -> dict[Tensor, Array]:
        """Copies of fed values, for parts that run later; raises RunnerError for one of wrong shape or dtype."""
        taken = (tensor for tensor in fed if tensor in self._specs)
        return {tensor: fed_array(tensor, fed[tensor], self._specs[tensor]).copy() for tensor in taken}


@dataclass(frozen=True)
class _UnderWay:
    """A launched step. fed: copies of what the caller gave. number, begin_ns: of its run. fetched, turns: of the parts
    that have run."""

    client: Client
    ready: _Ready
    step: int
    fed: Mapping[Tensor, Array]
    number: int
    begin_ns: int
    fetched: dict[tuple[str, Tensor], Array] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
