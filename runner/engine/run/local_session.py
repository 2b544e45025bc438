"""A session whose devices are threads of this process; launched clients run on one device at a time."""

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from threadpoolctl import ThreadpoolController

from runner.engine.compile.compile import Compiled
from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.program import Client, InputSource, Program, Signature
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph import Cluster, Tensor
from runner.engine.run import session
from runner.engine.run.executor import DeviceExecutor, Values, fed_array
from runner.engine.run.inputs import ReadAhead, SharedReading
from runner.engine.run.interleaving import Begin, End, Interleaving, Launched, VirtualTime
from runner.engine.run.rendezvous import LocalRendezvous
from runner.engine.run.step_driver import Clients, Finished
from runner.engine.run.storage import Arena, VariableStore
from runner.engine.run.timeline import ClientRuns, LocalTrace, RecordedPlan, Timeline
from runner.engine.run.wires import platform_of, wires_of
from runner.errors import RunnerError
from runner.kernels.contract import Array
from runner.kernels.registry import Registry

PROCESS = "main"  # name of the process of a ``LocalSession``


class LocalSession(Clients):
    """A :class:`Session` in this process: a single device runs in the caller's thread, several in separate threads.

    check_finite: raise an error that names the first node whose output is not finite. interleaving: the order in which
    launched clients run on the devices; by default, a virtual clock with 1 s per run on a device and 0 s per transfer.
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
        self._prepared: dict[Signature, _Prepared] = {}
        self._readings: dict[str, dict[str, ReadAhead]] = {}
        self._sent = dict.fromkeys(self._stores, 0)
        self._trace: LocalTrace | None = None
        self._interleaving = interleaving or VirtualTime(lambda client, device, step: 1.0, lambda nbytes: 0.0)
        self._launched: dict[str, _LaunchedRun] = {}
        self._begun = dict.fromkeys(self._stores, 0)
        self._pool: ThreadPoolExecutor | None = None
        if len(cluster.devices) > 1:
            count = len(cluster.devices)
            self._pool = ThreadPoolExecutor(count, thread_name_prefix="device", initializer=share_thread_count())

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Array]:
        begin_ns = time.monotonic_ns()
        session.require_runnable(client, self._launched)
        planned = self._planned.client(client)
        ready = self._prepare(planned.signature)
        fed = session.expand_feeds(planned, feeds or {})
        jobs = {device: self._feeds_of(ready, planned, device, step, fed) for device in ready.feeds}
        number = ready.begin()
        fetched: dict[tuple[str, Tensor], Array] = {}
        for device, values in self._execute(ready, planned, step, jobs).items():
            fetched.update({(device, tensor): value for tensor, value in values.items()})
            self._sent[device] += ready.executors[device].plan.sent_bytes
        if self._trace is not None:
            self._trace.runs.add(client, number, step, begin_ns)
        return ready.fetches(planned, fetched)

    def launch(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> None:
        planned = self._planned.client(client)
        session.require_launchable(planned, self._launched)
        ready = self._prepare(planned.signature)
        fed = ready.copy_feeds(session.expand_feeds(planned, feeds or {}))
        self._launched[client] = _LaunchedRun(planned, ready, step, fed, ready.begin(), time.monotonic_ns())
        self._interleaving.launched(Launched(client, step, ready.received_bytes))

    def finished(self) -> Finished:
        if not self._launched:
            raise RunnerError("no client is running: launch one first")
        while True:
            match self._interleaving.next():
                case Begin(client, device):
                    self._run_part(self._launched[client], device)
                case End(client):
                    ended = self._launched.pop(client)
                    if self._trace is not None:
                        self._trace.runs.add(client, ended.number, ended.step, ended.begin_ns, launched=True)
                    return Finished(client, ended.step, ended.ready.fetches(ended.client, ended.fetched), ended.turns)

    def plans(self, client: str) -> dict[str, DevicePlan]:
        """Return the plans of a client by device."""
        ready = self._prepare(self._planned.client(client).signature)
        return {device: executor.plan for device, executor in ready.executors.items()}

    def start_trace(self, clients: Collection[str]) -> None:
        session.require_no_trace(self._trace, clients)
        ready = {client: self._prepare(self._planned.client(client).signature) for client in clients}
        trace = self._trace = LocalTrace(PROCESS, ClientRuns(PROCESS, clients))
        for client, each in ready.items():
            for device, executor in each.executors.items():
                trace.add(device, RecordedPlan(client, executor.plan, each.compiled.parts[device].graph), executor)

    def stop_trace(self) -> Timeline:
        trace, self._trace = session.required_trace(self._trace), None
        return trace.stop()

    def sent_bytes(self) -> list[int]:
        return list(self._sent.values())

    def peak_memory_bytes(self) -> dict[str, int]:
        return {PROCESS: session.peak_rss_bytes()}

    def libraries(self) -> dict[str, list[str]]:
        found: dict[str, set[str]] = {device.type: set() for device in self._cluster.devices}
        for ready in self._prepared.values():
            for device, executor in ready.executors.items():
                found[self._cluster.device(device).type] |= executor.plan.libraries
        return {device_type: sorted(names) for device_type, names in found.items()}

    def close(self) -> None:
        """Stop the device threads. Raises RunnerError if a device has failed since its last synchronization."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for device, store in self._stores.items():
            store.platform.enter()
            try:
                store.platform.synchronize()
            except RuntimeError as error:
                raise RunnerError(f"{device}: the device failed: {error}") from error

    def _feeds_of(self, ready: "_Prepared", client: Client, device: str, step: int, fed: Values) -> Values:
        """Return the feeds of one device in a step: values from the caller and from the input source."""
        given = {tensor: fed[tensor] for tensor in ready.feeds[device] if tensor in fed}
        return {**given, **self._reading(ready, client)[device].read(step)}

    def _reading(self, ready: "_Prepared", client: Client) -> Mapping[str, ReadAhead]:
        """Return device -> reader of a client's inputs."""
        if client.name not in self._readings:
            inputs, executors = client.inputs, ready.executors.items()
            slots = {device: [slot for slot in inputs if slot.tensor in fed] for device, fed in ready.feeds.items()}
            read = SharedReading(self._source, slots).read
            self._readings[client.name] = {device: ReadAhead(each, partial(read, device)) for device, each in executors}
        return self._readings[client.name]

    def _run_part(self, run: "_LaunchedRun", device: str) -> None:
        executor = run.ready.executors[device]
        run.turns[device] = self._begun[device]
        self._begun[device] += 1
        values = executor.run(run.step, self._feeds_of(run.ready, run.client, device, run.step, run.fed))
        run.fetched.update({(device, tensor): value for tensor, value in values.items()})
        self._sent[device] += executor.plan.sent_bytes

    def _prepare(self, signature: Signature) -> "_Prepared":
        if signature not in self._prepared:
            rendezvous = LocalRendezvous(self._timeout_s)
            executors = {}
            for device, plan in self._planned.plans(signature).items():
                store, arena = self._stores[device], self._arenas[device]
                own = self._cluster.device(device).type
                alike = frozenset(each.name for each in self._cluster.devices if each.type == own)
                wires = wires_of(store.platform, rendezvous, rendezvous, alike)
                made = (plan, self._registry, store, arena, wires)
                executors[device] = DeviceExecutor(*made, check_finite=self._check_finite)
            self._prepared[signature] = _Prepared(self._planned.compiled(signature), executors, rendezvous)
        return self._prepared[signature]

    def _execute(self, ready: "_Prepared", client: Client, step: int, jobs: Mapping[str, Values]) -> dict[str, Values]:
        readings = self._reading(ready, client)
        if self._pool is None or len(readings) == 1:
            return {device: each.run(step, jobs[device]) for device, each in readings.items()}

        def guarded(device: str) -> Values:
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


def share_thread_count() -> Callable[[], None]:
    """Return a function that gives another Python thread as many OpenMP threads as the caller has.

    OpenMP keeps a separate thread count for each Python thread. The caller makes the plans, with scratch memory for
    each OpenMP thread. A device's thread binds a plan again after the arena has grown, and must use the same count.
    """
    pools = ThreadpoolController().select(user_api="openmp").lib_controllers
    numbers = [pool.num_threads for pool in pools]

    def take() -> None:
        for pool, number in zip(pools, numbers, strict=True):
            pool.set_num_threads(number)

    return take


@dataclass
class _Prepared:
    """A signature with its executors. feeds: device -> specs of fed tensors. begun: number of runs so far."""

    compiled: Compiled
    executors: Mapping[str, DeviceExecutor]
    rendezvous: LocalRendezvous
    begun: int = 0

    def __post_init__(self) -> None:
        plans = {device: each.plan for device, each in self.executors.items()}
        self.feeds = {device: {feed.tensor: feed.spec for feed in plan.feeds} for device, plan in plans.items()}
        self.received_bytes = {device: plan.received_bytes for device, plan in plans.items()}

    def begin(self) -> int:
        """Count a new run and return the number of earlier runs."""
        self.begun += 1
        return self.begun - 1

    def fetches(self, client: Client, fetched: Mapping[tuple[str, Tensor], Array]) -> dict[str, Array]:
        """Return the fetches of a client by name. fetched: (device, tensor on it) -> value."""
        return {name: fetched[self.compiled.location[tensor]] for name, tensor in client.fetches.items()}

    def copy_feeds(self, fed: Mapping[Tensor, Any]) -> dict[Tensor, Array]:
        """Copy fed values for devices that run later; raises RunnerError for a wrong shape or dtype."""
        specs = {tensor: spec for feeds in self.feeds.values() for tensor, spec in feeds.items() if tensor in fed}
        return {tensor: fed_array(tensor, fed[tensor], spec).copy() for tensor, spec in specs.items()}


@dataclass(frozen=True)
class _LaunchedRun:
    """A launched step. fed: copies of the fed values. number: count of earlier runs. turns: see :class:`Finished`."""

    client: Client
    ready: _Prepared
    step: int
    fed: Values
    number: int
    begin_ns: int
    fetched: dict[tuple[str, Tensor], Array] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
