"""The simulation of a configuration on described hardware: the same program, plans and step driver as in a run."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from runner.config.schema import Config
from runner.data.settings import limited_facts
from runner.engine.compile.cost import node_seconds
from runner.engine.compile.program import Program
from runner.engine.graph import GPU, Cluster, Device, state_dtype, worker_device
from runner.engine.graph.device import server_device
from runner.engine.run.kernel_table import load_described_kernels, load_kernels
from runner.engine.run.recording import SEND
from runner.engine.run.step_driver import bind
from runner.engine.run.timeline import LinkSpan
from runner.engine.simulate.hardware import DeviceKind, Hardware
from runner.engine.simulate.memory import peak_tensors
from runner.engine.simulate.network import Network, network_of, workers_per_host
from runner.engine.simulate.session import SimulatedSession, Totals
from runner.errors import ConfigError, ResourceError
from runner.strategies.base import PER_HOST, Strategy
from runner.system.schema import Violation
from runner.system.text import duration
from runner.tracing.parts import device_parts
from runner.tracing.timeline_index import TimelineIndex, Update
from runner.training.build import program_of, updates_of
from runner.training.placement import place_layers
from runner.training.profiles import profiled_machine

log = logging.getLogger(__name__)

HARDWARE = "cluster.hardware"

RECORDED_RUNS = 20_000  # after this many recorded runs of clients, updates are no longer added to the timeline
PROGRESS_S = 5.0  # seconds between reports of the progress; shorter simulations report nothing
Announce = Callable[[str], None]  # a function that shows a line of text


@dataclass(frozen=True)
class SimulatedTimeline:
    """The spans of the devices and links of a simulation, and its updates."""

    index: TimelineIndex
    links: Sequence[LinkSpan]
    updates: Sequence[Update]


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation.

    update_s: seconds of each simulated update. worker_step_s: seconds between the starts of consecutive steps of each
    worker, all sorted. examples: examples of one update, without those of dropped shares. hours: the time of the whole
    training, without evaluations. busy: device -> fraction of the time in which the device computes. carried: link ->
    bytes of one update. utilization: link -> fraction of its capacity that is used. memory_bytes: device -> planned
    memory. tensors: the largest tensors at the peak of the device with the most memory, and their bytes. origins: kind
    of device -> origin of costs (see ``profile.ORIGINS``) -> fraction of the time if each client runs once; copies of
    clients are not counted. make_timeline: returns ``timeline``; called when the timeline is first needed.
    """

    update_s: Sequence[float]
    worker_step_s: Sequence[float]
    examples: int
    hours: float
    busy: Mapping[str, float]
    carried: Mapping[str, float]
    utilization: Mapping[str, float]
    memory_bytes: Mapping[str, int]
    tensors: Mapping[str, int]
    origins: Mapping[str, Mapping[str, float]]
    make_timeline: Callable[[], SimulatedTimeline] = field(repr=False)

    @property
    def step_s(self) -> float:
        """Seconds of one update, the mean over the simulated updates."""
        return sum(self.update_s) / len(self.update_s)

    @property
    def examples_per_s(self) -> float:
        """Examples that updates use per second."""
        return self.examples / self.step_s

    @cached_property
    def timeline(self) -> SimulatedTimeline:
        """The timeline of the last recorded updates; ``parts`` and ``sent_bytes`` are means over these updates."""
        return self.make_timeline()

    @cached_property
    def parts(self) -> Mapping[str, Mapping[str, float]]:
        """Device -> part of an update -> its seconds; see :mod:`runner.tracing.parts`."""
        return device_parts(self.timeline.index, self.timeline.updates)

    @cached_property
    def sent_bytes(self) -> Mapping[str, float]:
        """Device -> bytes that it sends in one update."""
        updates, sent = self.timeline.updates, dict.fromkeys(self.busy, 0.0)
        for span in self.timeline.index.timeline.spans:
            if span.kind == SEND and updates[0].begin_ns < span.end_ns <= updates[-1].end_ns:
                sent[span.device] += span.nbytes / len(updates)
        return sent


def simulate(config: Config, steps: int, *, fits: bool = True, announce: Announce | None = None) -> Simulated:
    """Simulate a checked configuration: the warm-up of the step driver, which is not counted, and ``steps`` updates.

    fits: whether the memory of each device must be large enough. announce: shows the progress of a long simulation.
    After an interruption (Ctrl-C), the result has the counted updates so far; without any, KeyboardInterrupt is raised.
    With ``config.trace``, the timeline has a span for each instruction; without it, one span covers consecutive
    instructions that wait for no transfer.

    Raises ConfigError if the cluster is not described or the description does not fit the strategy, and ResourceError
    if the memory of a device is too small.
    """
    updates = updates_of(config, limited_facts(config.data))
    try:
        session = session_of(config, updates)
        memory = memory_of(session, fits=fits)
        marks = _run_updates(session, config, steps, announce)
        steps = len(marks) - 1
    except Violation as error:
        raise ConfigError(f"{HARDWARE}: {error}") from error
    before, after = marks[0], marks[-1]
    seconds = after.now - before.now
    carried = {link: after.carried[link] - before.carried[link] for link in after.carried}
    capacity = {link.name: link.bytes_per_s for link in reversed(session.network.links)}
    return Simulated(
        update_s=[late.now - early.now for early, late in pairwise(marks)],
        worker_step_s=worker_step_s(session.begun, before.now),
        examples=config.train.batch_size,
        hours=updates * seconds / steps / 3600.0,
        busy={device: (after.busy_s[device] - before.busy_s[device]) / seconds for device in after.busy_s},
        carried={link: nbytes / steps for link, nbytes in carried.items()},
        utilization={link: nbytes / seconds / capacity[link] for link, nbytes in carried.items()},
        memory_bytes=memory,
        tensors=_largest_tensors(session, max(memory, key=memory.__getitem__)),
        origins=session.origins,
        make_timeline=partial(_timeline, session, marks, config),
    )


def worker_step_s(begun: Mapping[str, Sequence[float]], first: float) -> list[float]:
    """Return the sorted seconds between consecutive starts of each client; starts before ``first`` are left out."""
    return sorted(end - start for starts in begun.values() for start, end in pairwise(starts) if start >= first)


def session_of(config: Config, updates: int) -> SimulatedSession:
    """Return a session on a virtual clock. updates: updates of the whole run. Raises the errors of :func:`simulate`."""
    hardware, strategy = hardware_of(config), config.parallelism
    built = program_of(config, limited_facts(config.data), updates, simulated=True)
    program, profiled = replace(built, one_process=None), profiled_machine(config, hardware, built)
    hardware = hardware if profiled is None else profiled.hardware
    network = network_of(hardware, program.workers, program.servers)
    cluster = described_cluster(hardware, program, network) if profiled is None else profiled.cluster
    described = any(device.type == GPU for device in cluster.devices)
    registry = load_described_kernels() if described else load_kernels()
    if strategy.layer_placement is not None:
        program = place_layers(strategy.layer_placement, program, cluster, registry).program
    described_session = program, cluster, registry, hardware, network, config.seed
    if profiled is None:
        return SimulatedSession(*described_session)
    return SimulatedSession(*described_session, costs_of=profiled.costs_of, seconds=node_seconds)


def variants_on(hardware: Hardware, strategy: type[Strategy], workers: int) -> Iterator[Mapping[str, object]]:
    """Yield the variants of a strategy for a number of workers of described hardware.

    Variants for hosts are left out if hosts have one worker each. If the hardware does not fit the number of workers,
    the variants have one host, and simulating a variant raises the error.
    """
    try:
        per_host = workers_per_host(network_of(hardware, workers, 0), workers)
    except Violation:
        per_host = workers
    for variant in strategy.variants:
        if per_host is not None or PER_HOST not in variant.values():
            yield {key: per_host if value == PER_HOST else value for key, value in variant.items()}


def _run_updates(session: SimulatedSession, config: Config, steps: int, announce: Announce | None) -> list[Totals]:
    """Simulate updates; return the totals after the warm-up and after each of ``steps`` further updates."""
    driver = bind(session.program.step_driver, session)
    optimizer = config.optimizer.for_batch(config.train.batch_size)
    rates = np.zeros(optimizer.rate_shape, state_dtype(config.precision))
    for step in range(driver.warm_up):
        driver.update(step, rates)
    marks = [session.totals()]
    began = reported = time.monotonic()
    try:
        for step in range(1, steps + 1):
            driver.update(driver.warm_up - 1 + step, rates)
            if step == steps and not any(client.deferred for client in session.program.training):
                driver.synchronize()  # complete the round; deferred clients would also run later updates
            marks.append(session.totals())
            if session.recorded >= RECORDED_RUNS:
                session.stop_recording()
            now = time.monotonic()
            left_s = (now - began) / step * (steps - step)
            if announce is not None and left_s and now + left_s * (step == 1) > reported + PROGRESS_S:
                announce(f"simulated {step} of {steps} updates, about {duration(left_s)} left")
                reported = now
    except KeyboardInterrupt:
        if len(marks) == 1:
            raise
        log.warning("interrupted: the result has %d of %d updates", len(marks) - 1, steps)
    return marks


def _timeline(session: SimulatedSession, marks: Sequence[Totals], config: Config) -> SimulatedTimeline:
    """Return the timeline of the last recorded updates, at most ``config.trace_steps`` of them to save memory."""
    recorded = [mark for mark in marks if mark.now <= session.recorded_s]
    recent = recorded[-1 - config.trace_steps :]
    spans, links = session.timeline(recent[0].now, detail=config.trace)
    ns = [round(1e9 * mark.now) for mark in recent]
    first = 1 + len(recorded) - len(recent)
    updates = [Update(step, begin, end) for step, (begin, end) in enumerate(pairwise(ns), first)]
    return SimulatedTimeline(TimelineIndex(spans), links, updates)


def _largest_tensors(session: SimulatedSession, device: str) -> dict[str, int]:
    """Return name -> bytes of the 8 largest tensors among a device's variables and at the peak of its largest step."""
    plans = [own for each in session.program.training if (own := session.plans(each.name).get(device)) is not None]
    variables = {name: slot.layout.nbytes for plan in plans for name, slot in plan.variables.items()}
    largest = max(plans, key=lambda plan: plan.arena_bytes, default=None)
    found = variables | ({} if largest is None else peak_tensors(largest))
    return dict(sorted(found.items(), key=lambda item: -item[1])[:8])


def hardware_of(config: Config) -> Hardware:
    """Return the described hardware of a configuration; raises ConfigError if there is none."""
    if config.cluster.hardware is None:
        raise ConfigError(f"{HARDWARE}=null: expected a described cluster, as in cluster=k20x8, or your own YAML file")
    hardware: Hardware = config.cluster.hardware
    return hardware


def described_cluster(hardware: Hardware, program: Program, network: Network) -> Cluster:
    """Return the devices of a program with the rates of the described hardware; the compiler plans with these rates."""
    devices = [_device(hardware.kinds[hardware.workers.kind], worker_device, k) for k in range(program.workers)]
    if hardware.servers is not None:
        devices += [_device(hardware.kinds[hardware.servers.kind], server_device, k) for k in range(program.servers)]
    if not network.links:
        return Cluster(tuple(devices))
    slowest = min(network.links, key=lambda link: link.bytes_per_s)
    return Cluster(tuple(devices), latency_s=slowest.latency_s, bytes_per_s=slowest.bytes_per_s)


def _device(kind: DeviceKind, named: Callable[[int, str], str], number: int) -> Device:
    gpu = number if kind.type == GPU else None
    rates = kind.flops_per_s * kind.products, kind.bytes_per_s * kind.traffic
    return Device(named(number, kind.type), *rates, gpu)


def memory_of(session: SimulatedSession, *, fits: bool = True) -> dict[str, int]:
    """Return device -> bytes of its variables plus bytes of the arena of its largest step.

    Raises ResourceError if a device is too small, unless ``fits`` is false.
    """
    variables: dict[str, dict[str, int]] = {device: {} for device in session.devices}
    arenas = dict.fromkeys(session.devices, 0)
    for client in session.program.training:
        for device, plan in session.plans(client.name).items():
            variables[device] |= {name: slot.layout.nbytes for name, slot in plan.variables.items()}
            arenas[device] = max(arenas[device], plan.arena_bytes)
    needed = {device: sum(variables[device].values()) + arenas[device] for device in session.devices}
    for device, nbytes in needed.items():
        room = session.kind(device).memory_gib
        if fits and room is not None and nbytes > room * 2**30:
            raise ResourceError(
                f"{device} needs {nbytes / 2**30:.2f} GiB, and the described device has {room:g} GiB ({HARDWARE}): use "
                "a smaller batch, train.recompute, or another strategy"
            )
    return needed
