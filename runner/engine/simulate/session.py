"""The clients of a program on a virtual clock: the step driver of a strategy runs them as on real devices."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runner.engine.compile.cost import Seconds
from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.program import Client, Program
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.events.loop import EventLoop, Floats
from runner.engine.events.state import NONE
from runner.engine.events.storage import block_of
from runner.engine.graph.device import Cluster, DeviceName, task_of
from runner.engine.run.step_driver import Clients, Finished
from runner.engine.run.timeline import LinkSpan, Timeline
from runner.engine.simulate.activities import ClientActivities, segments
from runner.engine.simulate.costs import Costs, node_seconds_of
from runner.engine.simulate.draws import Draws, InputReads
from runner.engine.simulate.hardware import DeviceKind, Group, Hardware
from runner.engine.simulate.hosts import shared_hosts
from runner.engine.simulate.network import Network
from runner.engine.simulate.spans import Executed, link_spans, timeline_of
from runner.errors import RunnerError
from runner.kernels.contract import Array
from runner.kernels.registry import Registry


@dataclass(frozen=True)
class _Sums:
    """Sums over a part of a simulation, as in :class:`Totals`. busy_s: (units,). carried: (links,)."""

    now: float
    busy_s: Floats
    carried: Floats

    @classmethod
    def of(cls, loop: EventLoop) -> "_Sums":
        """Return the sums since the loop was restarted."""
        return cls(loop.now, loop.busy_s, loop.carried)

    def plus(self, other: "_Sums") -> "_Sums":
        """Return the sums of both parts."""
        return _Sums(self.now + other.now, self.busy_s + other.busy_s, self.carried + other.carried)


@dataclass(frozen=True)
class Totals:
    """Sums over a simulation. now: seconds on the clock. busy_s: device -> seconds of work. carried: link -> bytes."""

    now: float
    busy_s: Mapping[str, float]
    carried: Mapping[str, float]


class SimulatedSession(Clients):
    """A session that runs the clients of a program on an event loop.

    Fetches are zeros. recorded_s: seconds on the clock up to which the timeline has all runs; infinite until
    :meth:`stop_recording`.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        registry: Registry,
        hardware: Hardware,
        network: Network,
        seed: int = 0,
        *,
        costs_of: Callable[[DeviceKind], Costs] = Costs,
        seconds: Seconds | None = None,
    ) -> None:
        """Make a virtual cluster. The first run of a client raises Violation if two of its devices have no route.

        cluster: its devices have the types that ``hardware`` states. network: the links of ``hardware``. seed: seed of
        the disturbances. costs_of: returns the costs of a kind of device. seconds: function for the seconds of a node,
        for placement and scheduling; None to compute them from the described kinds.
        """
        self.program = program
        clients = {name: client for name, client in program.clients.items() if name not in program.copies}
        clients |= {copy.client.name: copy.client for copy in program.copies.values()}
        planned = replace(program, clients=clients, copies={})
        self._planned = ProgramPlans(planned, cluster, registry, seconds or node_seconds_of(self.kind))
        self._hardware = hardware
        self.network = network
        self.costs = {name: costs_of(kind) for name, kind in hardware.kinds.items()}
        self.devices = tuple(device.name for device in cluster.devices)
        self._units = {device: number for number, device in enumerate(self.devices)}
        # Each device has a second unit, on which its host sends one message after the other, and a third, on which its
        # host reads batches. The master and the serial links follow.
        capacities, master = [link.bytes_per_s for link in self.network.links], 3 * len(self.devices)
        serial = [number for number, link in enumerate(self.network.links) if link.serial]
        self._serial = {number: master + 1 + unit for unit, number in enumerate(serial)}
        host_of = {device: host for device in self.devices if (host := self._group(device).host) is not None}
        costs = {device: self.costs[self._group(device).kind] for device in host_of}
        slowdown = {host: self._slowdown(host_of, host) for host in dict.fromkeys(host_of.values())}
        self._shares, cores = shared_hosts(host_of, costs, slowdown, first_link=len(capacities), master_unit=master)
        self._loop = EventLoop([*capacities, *cores], master + 1 + len(serial))
        self._host_work = block_of([(1e-6 * hardware.step_us, 0.0, 1, NONE, False)], [()], [()])
        self._draws = Draws(hardware.disturbances, seed)
        self._reads: dict[str, InputReads] = {}
        self._begun: dict[str, list[float]] = {}
        self._runs: dict[str, ClientActivities] = {}
        self._originals: dict[str, ClientActivities] = {}
        self._fetches: dict[str, dict[str, Array]] = {}
        self._past = _Sums.of(self._loop)
        self._repeats: dict[str, tuple[_Sums, Executed]] = {}
        self._launched: dict[int, Executed] = {}
        self._ended: deque[int] = deque()
        self._launches = 0
        self._executed: list[Executed] = []
        self.recorded_s = math.inf

    def totals(self) -> Totals:
        """Return the totals so far."""
        found = self._past.plus(_Sums.of(self._loop))
        busy = dict(zip(self.devices, found.busy_s.tolist(), strict=False))
        carried: dict[str, float] = {}
        for link, nbytes in zip(self.network.links, found.carried.tolist(), strict=False):
            carried[link.name] = carried.get(link.name, 0.0) + nbytes  # routes use only the first of parallel links
        return Totals(found.now, busy, carried)

    @property
    def now(self) -> float:
        """Seconds on the virtual clock."""
        return self._past.now + self._loop.now

    def timeline(self, begin_s: float, *, detail: bool) -> tuple[Timeline, list[LinkSpan]]:
        """Return the spans of the devices and of the links for all runs that end after ``begin_s``.

        detail: see :func:`~runner.engine.simulate.spans.timeline_of`. Launched clients are continued to their end, so
        that the spans before the present time are complete. Runs that began after ``stop_recording`` are left out.
        """
        while self._continue():
            pass
        executed = sorted(
            (each for each in self._executed if each.end_s(each.end) > begin_s), key=lambda each: each.number
        )
        plans = {each.client.name: self.plans(each.client.name) for each in executed}
        links = list(link_spans(executed, self.network))
        return timeline_of(executed, plans, self.program.graph, detail=detail), links

    @property
    def computes(self) -> bool:
        """False, because no arrays are computed."""
        return False

    @property
    def begun(self) -> Mapping[str, Sequence[float]]:
        """Client that is slowed (see ``Client``) -> the seconds on the clock at which its steps began."""
        return self._begun

    @property
    def origins(self) -> dict[str, dict[str, float]]:
        """Kind of device -> origin -> fraction of the seconds of all clients except copies, each run once."""
        return {
            name: {
                origin: seconds / sum(costs.origins.values()) for origin, seconds in costs.origins.items() if seconds
            }
            for name, costs in self.costs.items()
        }

    def kind(self, device: str) -> DeviceKind:
        """Return the kind of a device."""
        return self._hardware.kinds[self._group(device).kind]

    def _group(self, device: str) -> Group:
        group = self._hardware.servers if DeviceName.parse(device).job == "ps" else self._hardware.workers
        assert group is not None, "servers=None, but the cluster has a parameter server"
        return group

    def _slowdown(self, host_of: Mapping[str, str], host: str) -> float:
        """Return the factor by which instructions take longer while all devices of ``host`` compute."""
        devices = [device for device, its in host_of.items() if its == host]
        plans = (self.plans(client.name) for client in self.program.training)
        own = (plan for each in plans for device, plan in each.items() if device in devices)
        return self.costs[self._group(devices[0]).kind].slowdown(own, len(devices))

    def plans(self, client: str) -> Mapping[str, DevicePlan]:
        """Return the plans of a client by device; a copy has the plans of its original."""
        copy = self.program.copies.get(client)
        if copy is None:
            return self._planned.plans(self._planned.client(client).signature)
        found = self._planned.plans(copy.client.signature)
        return {copy.device(device): replace(plan, device=copy.device(device)) for device, plan in found.items()}

    @property
    def recorded(self) -> int:
        """The number of runs that the timeline has."""
        return len(self._executed)

    @property
    def _records(self) -> bool:
        return self.recorded_s == math.inf

    def stop_recording(self) -> None:
        """Leave out of the timeline all runs that begin from now on, and set ``recorded_s`` to the present time."""
        self.recorded_s = min(self.recorded_s, self.now)

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Run one step of a client; see :class:`~runner.engine.run.step_driver.Clients`.

        Without disturbances, a step that begins when nothing else runs takes the same time whenever it runs. Such a
        step is simulated once.
        """
        if self._launched:
            raise RunnerError(f"client {client!r} was run while launched clients are running")
        self._restart()
        if client in self._repeats:
            self._repeat(client, step)
            return self._zeros(client)
        self._begin(client, step)
        ended = self._next_end()
        if not self._hardware.disturbances.any:
            self._repeats[client] = _Sums.of(self._loop), ended
        return self._zeros(client)

    def launch(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> None:
        if not self._launched:
            self._restart()
        self._begin(client, step)

    def finished(self) -> Finished:
        if not self._launched:
            raise RunnerError("no client is running: launch one first")
        ended = self._next_end()
        return Finished(ended.client.name, ended.step, self._zeros(ended.client.name))

    def _restart(self) -> None:
        """Restart the clock of the loop if nothing runs, so that no rounding depends on earlier steps."""
        if self._loop.idle:
            self._past = self._past.plus(_Sums.of(self._loop))
            self._loop.restart()

    def _repeat(self, client: str, step: int) -> None:
        """Account for a step that takes the same time as an earlier step."""
        sums, first = self._repeats[client]
        if client in self._begun:
            self._begun[client].append(self.now)
        if self._records:
            self._executed.append(replace(first, number=self._launches, step=step, offset_s=self._past.now))
        self._past = self._past.plus(sums)
        self._launches += 1

    def _begin(self, name: str, step: int) -> None:
        client, run = self.program.clients[name], self._run_of(name)
        host = self._loop.add_block(self._host_work)
        batches = [*self._batches(client, host)]
        rank, late = float(self._launches), self._delays_s(client, step)
        base, end = run.add_to(self._loop, rank=rank, delays_s=late, after=batches)
        inputs = batches or (host,)
        self._launched[end] = Executed(
            client, self._launches, step, run, host, inputs, base, end, self._past.now, self._records
        )
        self._launches += 1

    def _delays_s(self, client: Client, step: int) -> dict[str, float]:
        """Return device -> seconds by which a step begins late on the device."""
        if not client.slowed:
            return {}
        now = self.now
        self._begun.setdefault(client.name, []).append(now)
        devices = self.plans(client.name) if self._hardware.disturbances.any else ()
        return {device: self._draws.delay_s(self._place(device), step, now) for device in devices}

    def _batches(self, client: Client, host: int) -> Iterator[int]:
        """Yield, for each device whose input can be late, the activity after which the step has its batch."""
        if self._hardware.disturbances.input is None or not client.inputs:
            return
        for device, plan in self.plans(client.name).items():
            source = self._draws.input_of(self._place(device))
            fed = {feed.tensor for feed in plan.feeds}
            shares = {(slot.lo, slot.hi) for slot in client.inputs if slot.tensor in fed}
            if source is not None and shares:
                unit = 2 * len(self.devices) + self._units[device]
                reads = self._reads.setdefault(device, InputReads(self._loop, unit, source.ahead))
                yield reads.take(sum(hi - lo for lo, hi in shares) / source.examples_per_s, host)

    def _place(self, device: str) -> str:
        return self.network.place[task_of(device)]

    def _continue(self) -> bool:
        """Continue until at least one launched client ends, and record its run; return whether any client ended."""
        ended = self._loop.run()
        for number in ended:
            each = self._launched[number]
            if each.recorded:
                each.times = self._loop.times(each.first, number + 1)
                self._executed.append(each)
        self._ended.extend(ended)
        return bool(ended)

    def _next_end(self) -> Executed:
        if not self._ended and not self._continue():
            self._loop.require_ended()
        found = self._launched.pop(self._ended.popleft())
        # Runs are in the order of their launches, so activities before those of the first run are no longer needed.
        oldest = next(iter(self._launched.values()), None)
        self._loop.forget_before(len(self._loop) if oldest is None else oldest.first)
        return found

    def _run_of(self, client: str) -> ClientActivities:
        if client not in self._runs:
            copy = self.program.copies.get(client)
            original = self._original(self._planned.client(client if copy is None else copy.client.name))
            self._runs[client] = original if copy is None else original.on(copy.device)
        return self._runs[client]

    def _original(self, client: Client) -> ClientActivities:
        """Return the activities of a planned client, which its copies share."""
        if client.name not in self._originals:
            plans = self._planned.plans(client.signature)
            costs_of = {kind: costs.of(client, plans) for kind, costs in self.costs.items()}
            parts = {
                device: segments(
                    plan,
                    costs.seconds,
                    groups=None if costs.groups is None else costs.groups[device],
                    together=client.deferred,
                    apart=costs.profile is not None,
                    outside_s=costs.outside_s(client, plan),
                )
                for device, plan in plans.items()
                for costs in (costs_of[self._group(device).kind],)
            }
            shares = {
                device: replace(self._shares[device], messages=costs.messages, batch_s=costs.batch_s(client, plan))
                for device, plan in plans.items()
                if device in self._shares
                for costs in (costs_of[self._group(device).kind],)
            }
            self._originals[client.name] = ClientActivities(
                parts,
                self.network,
                self._units,
                message_s=1e-6 * self._hardware.message_us,
                in_order=self._hardware.in_order,
                together=client.deferred,
                shares=shares,
                serial=self._serial,
            )
        return self._originals[client.name]

    def _zeros(self, client: str) -> dict[str, Array]:
        if client not in self._fetches:
            fetches = self.program.clients[client].fetches
            specs = {name: self.program.graph.spec(tensor) for name, tensor in fetches.items()}
            self._fetches[client] = {name: np.zeros(spec.shape, np.float64) for name, spec in specs.items()}
        return self._fetches[client]
