"""The clients of a program on a virtual clock: the step driver of a strategy runs them as on real devices."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.program import Client, Program
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.events.loop import EventLoop
from runner.engine.graph.device import Cluster, DeviceName, task_of
from runner.engine.run.step_driver import Finished
from runner.engine.run.timeline import Timeline
from runner.engine.simulate.activities import Run
from runner.engine.simulate.costs import instruction_seconds, node_seconds_of
from runner.engine.simulate.draws import Draws
from runner.engine.simulate.hardware import DeviceKind, Hardware
from runner.engine.simulate.input_reads import InputReads
from runner.engine.simulate.network import Network
from runner.engine.simulate.spans import Executed, LinkSpan, Times, link_spans, timeline_of
from runner.errors import RunnerError
from runner.kernels.contract import Array
from runner.kernels.registry import Registry


@dataclass
class _Launched:
    """A client that runs. end: number of the activity that ends the run."""

    client: Client
    step: int
    end: int


@dataclass(frozen=True)
class Totals:
    """Sums over a simulation. now: seconds on the clock. busy_s: device -> seconds of work. carried: link -> bytes."""

    now: float
    busy_s: Mapping[str, float]
    carried: Mapping[str, float]


class SimulatedSession:
    """Runs the clients of a program on an event loop; see :class:`~runner.engine.run.step_driver.Clients`.

    Fetches are zeros, because no arrays are computed.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        registry: Registry,
        hardware: Hardware,
        network: Network,
        seed: int = 0,
    ) -> None:
        """Make a virtual cluster. Raises Violation if there is no route between two devices that communicate.

        cluster: its devices have the types that ``hardware`` states. network: the links of ``hardware``. seed: of the
        disturbances.
        """
        self.program = program
        self._planned = ProgramPlans(program, cluster, registry, node_seconds_of(self.kind))
        self._hardware = hardware
        self.network = network
        self.devices = tuple(device.name for device in cluster.devices)
        self._units = {device: number for number, device in enumerate(self.devices)}
        # Each device has a second unit, on which its host sends one message after the other, and a third, on which its
        # host reads batches.
        self._loop = EventLoop([link.bytes_per_s for link in self.network.links], 3 * len(self.devices))
        self._draws = Draws(hardware.disturbances, seed)
        self._reads: dict[str, InputReads] = {}
        self._begun: dict[str, list[float]] = {}
        self._runs: dict[str, Run] = {}
        self._launched: dict[int, _Launched] = {}
        self._ended: deque[int] = deque()
        self._launches = 0
        self._executed: list[Executed] = []

    def totals(self) -> Totals:
        """Return the totals so far."""
        busy = dict(zip(self.devices, self._loop.busy_s.tolist(), strict=False))
        names = (link.name for link in self.network.links)
        return Totals(self._loop.now, busy, dict(zip(names, self._loop.carried.tolist(), strict=True)))

    @property
    def now(self) -> float:
        """Seconds on the virtual clock."""
        return self._loop.now

    def timeline(self, begin_s: float, *, detail: bool) -> tuple[Timeline, list[LinkSpan]]:
        """Return the spans of all runs that end after ``begin_s``, of the devices and of the links.

        detail: see :func:`~runner.engine.simulate.spans.timeline_of`. Runs that have not ended are left out.
        """
        times = Times(self._loop.starts, self._loop.ends)
        ended = (each for each in self._executed if each.end not in self._launched)
        executed = [each for each in ended if times.ends[each.end] > begin_s]
        plans = {each.client.name: self.plans(each.client.name) for each in executed}
        links = list(link_spans(executed, times, self.network))
        return timeline_of(executed, times, plans, self.program.graph, detail=detail), links

    @property
    def begun(self) -> Mapping[str, Sequence[float]]:
        """Client that is slowed (see ``Client``) -> the seconds on the clock at which its steps began."""
        return self._begun

    def kind(self, device: str) -> DeviceKind:
        """Return the kind of a device."""
        group = self._hardware.servers if DeviceName.parse(device).job == "ps" else self._hardware.workers
        assert group is not None, "a network has been made for the parameter servers"
        return self._hardware.kinds[group.kind]

    def plans(self, client: str) -> Mapping[str, DevicePlan]:
        """Return the plans of a client by device."""
        return self._planned.plans(self._planned.client(client).signature)

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Run one step of a client; see :class:`~runner.engine.run.step_driver.Clients`."""
        if self._launched:
            raise RunnerError(f"client {client!r} was run while launched clients are running")
        planned = self._planned.client(client)
        self._begin(planned, step)
        self._next_end()
        return self._zeros(planned)

    def launch(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> None:
        """Begin one step of a deferred client; see :class:`~runner.engine.run.step_driver.Clients`."""
        self._begin(self._planned.client(client), step)

    def finished(self) -> Finished:
        """Continue until a launched client has finished; see :class:`~runner.engine.run.step_driver.Clients`."""
        if not self._launched:
            raise RunnerError("no client is running: launch one first")
        ended = self._next_end()
        return Finished(ended.client.name, ended.step, self._zeros(ended.client))

    def _begin(self, client: Client, step: int) -> None:
        plans = self._planned.plans(client.signature)
        host = self._loop.add(1e-6 * self._hardware.step_us)
        begin = [*self._batches(client, plans, host)] or [host]
        rank, late = float(self._launches), self._delays_s(client, plans, step)
        numbers = self._run_of(client).add_to(self._loop, self._units, rank=rank, delays_s=late, after=begin)
        end = self._loop.add(after=numbers or begin, watched=True)
        self._launched[end] = _Launched(client, step, end)
        base, run = end - len(numbers), self._run_of(client)
        self._executed.append(Executed(client, self._launches, step, run, host, begin, base, len(numbers), end))
        self._launches += 1

    def _delays_s(self, client: Client, plans: Mapping[str, DevicePlan], step: int) -> dict[str, float]:
        """Return device -> seconds by which a step begins late on it."""
        if not client.slowed:
            return {}
        now = self._loop.now
        self._begun.setdefault(client.name, []).append(now)
        return {device: self._draws.delay_s(self._place(device), step, now) for device in plans}

    def _batches(self, client: Client, plans: Mapping[str, DevicePlan], host: int) -> Iterator[int]:
        """Yield, for each device whose input can be late, the activity after which the step has its batch."""
        for device, plan in plans.items():
            source = self._draws.input_of(self._place(device)) if client.inputs else None
            fed = {feed.tensor for feed in plan.feeds}
            shares = {(slot.lo, slot.hi) for slot in client.inputs if slot.tensor in fed}
            if source is not None and shares:
                unit = 2 * len(self.devices) + self._units[device]
                reads = self._reads.setdefault(device, InputReads(self._loop, unit, source.ahead))
                yield reads.take(sum(hi - lo for lo, hi in shares) / source.examples_per_s, host)

    def _place(self, device: str) -> str:
        return self.network.place[task_of(device)]

    def _next_end(self) -> _Launched:
        if not self._ended:
            self._ended.extend(self._loop.run())
        if not self._ended:
            self._loop.require_ended()
        return self._launched.pop(self._ended.popleft())

    def _run_of(self, client: Client) -> Run:
        if client.name not in self._runs:
            plans = self._planned.plans(client.signature)
            seconds = {device: partial(instruction_seconds, kind=self.kind(device)) for device in plans}
            message_s = 1e-6 * self._hardware.message_us
            self._runs[client.name] = Run(plans, seconds, self.network, message_s=message_s, together=client.deferred)
        return self._runs[client.name]

    def _zeros(self, client: Client) -> dict[str, Array]:
        specs = {name: self.program.graph.spec(tensor) for name, tensor in client.fetches.items()}
        return {name: np.zeros(spec.shape, np.float64) for name, spec in specs.items()}
