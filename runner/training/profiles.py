"""Profiles of this machine: their files, the measurement of instructions, and the simulated cluster of a profile."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median

from threadpoolctl import threadpool_limits

from runner.config.configuration import share_of_worker
from runner.config.schema import Config
from runner.data.pipeline import Pipeline
from runner.data.settings import load_limited, settings_from_config
from runner.data.source import Prefetcher, pipeline_of
from runner.engine.cluster.emulation import BYTES_PER_S_OF_MBIT
from runner.engine.compile.passes.transfers import TRANSFERS
from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.program import Client, Program
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph.device import DISTRIBUTIONS, Cluster
from runner.engine.run.instruction_times import measured_seconds
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.recording import INPUT
from runner.engine.run.step_driver import bind
from runner.engine.simulate.costs import Costs
from runner.engine.simulate.hardware import DeviceKind, Hardware, LinkDescription, places
from runner.engine.simulate.network import network_of
from runner.engine.simulate.profile import (
    INPUT_THREADS,
    Family,
    InstructionSignature,
    Machine,
    Profile,
    batch_signature,
    families_of,
    input_signature,
    measured_neighbours,
    signature_of,
)
from runner.errors import ConfigError
from runner.records.summary import cpu_model, versions
from runner.system.json_file import JsonFile
from runner.system.machine import usable_cores
from runner.system.schema import Record, Violation
from runner.training.build import build, source_document
from runner.training.devices import cluster_of
from runner.training.experiment import Experiment

WARM_UP, REPEATS = 2, 15  # numbers of untimed and of timed inputs

_FILE: JsonFile[Profile] = JsonFile(
    Record(Profile), ConfigError, "record the profile again with `runner profile`", indent=None
)


def read_profile(path: Path) -> Profile:
    """Return the profile in a file. Raises ConfigError if the file is missing, damaged or of another version."""
    try:
        return _FILE.read(path)
    except FileNotFoundError:
        raise ConfigError(f"profile {path}: no such file; record one with `runner profile`") from None


def write_profile(path: Path, profile: Profile) -> None:
    _FILE.write(path, profile)


def profile_here(path: Path) -> Profile:
    """Return the profile of this machine in a file, or an empty profile if there is no file.

    Raises ConfigError if the file is damaged, or is of another machine or of other versions of libraries.
    """
    machine = Machine(cpu_model(), usable_cores(), dict(versions()))
    if not path.exists():
        return Profile(machine, None, None, None, None, ())
    found = read_profile(path)
    if found.machine != machine:
        raise ConfigError(f"profile {path}: recorded on {found.machine}, and this is {machine}; use another file")
    return found


def with_instructions(
    profile: Profile, config: Config, measured: set[tuple[InstructionSignature, int]] | None = None
) -> Profile:
    """Return a profile with the instructions of a configuration, measured in this process.

    The instructions of several processes are measured alone, and next to threads that represent the other processes.
    config: as returned by ``fix_machine_values``, with the number of kernel threads. measured: signatures measured
    before, with their neighbours; plans with only such signatures are skipped, and new signatures are added.
    """
    experiment, threads = build(config), config.cluster.threads_per_worker or 1
    seen = set() if measured is None else measured
    families: list[Family] = []
    needed = config.parallelism.processes
    for neighbours in sorted({0, measured_neighbours(needed.workers + needed.servers, threads, profile.machine.cores)}):
        families += families_of(_instructions(experiment, neighbours, seen), threads, neighbours)
    if experiment.program.one_process is not None:
        families += families_of(_inputs(experiment), INPUT_THREADS)
    return profile.with_families(families)


def _instructions(
    experiment: Experiment, neighbours: int, seen: set[tuple[InstructionSignature, int]]
) -> Iterator[tuple[InstructionSignature, float]]:
    """Yield signature and seconds of each instruction of a training step, device by device.

    Plans whose signatures are all in ``seen`` are skipped.
    """
    registry, threads = load_kernels(), experiment.threads_per_worker
    with threadpool_limits(threads):
        planned = ProgramPlans(experiment.program, experiment.cluster, registry)
        initial = planned.plans(planned.client("init").signature)
        for client in experiment.program.training:
            for device, plan in planned.plans(client.signature).items():
                signatures = [(signature_of(plan, each), neighbours) for each in plan.instructions]
                if seen.issuperset(signatures):
                    continue
                seconds = measured_seconds(plan, initial.get(device), registry, threads, neighbours=neighbours)
                for (signature, _), each in zip(signatures, seconds, strict=True):
                    if signature.op not in TRANSFERS:
                        yield signature, each
                seen.update(signatures)


def _inputs(experiment: Experiment) -> Iterator[tuple[InstructionSignature, float]]:
    """Yield the times of the inputs of a step in one process, for each client and device.

    They are the time for which the step waits and copies, and the time of the thread that makes the next batch.
    """
    config, program, document = experiment.config, experiment.program, source_document(experiment.config)
    settings = settings_from_config(document.pop("config"))
    pipeline = pipeline_of(settings, load_limited(settings), **document)
    with (
        Prefetcher(pipeline, settings.prefetch) as source,
        closing(LocalSession(program, experiment.cluster, load_kernels(), source)) as session,
    ):
        session.run("init")
        driver = bind(program.step_driver, session)
        session.start_trace([client.name for client in program.training])
        for step in range(WARM_UP + REPEATS):
            driver.update(step, experiment.rates(step))
        timeline = session.stop_trace()
        for client in program.training:
            numbers = [run.number for run in timeline.runs if run.client == client.name][WARM_UP:]
            for device, plan in session.plans(client.name).items():
                read = dict.fromkeys(numbers, 0)
                for span in timeline.spans:
                    if (span.client, span.device, span.kind) == (client.name, device, INPUT) and span.number in read:
                        read[span.number] += span.ns
                signature = input_signature(config.data.name, client, plan)
                if signature is not None and read:
                    yield signature, 1e-9 * median(read.values())
                    yield batch_signature(signature), _batch_s(pipeline, client, plan)


def _batch_s(pipeline: Pipeline, client: Client, plan: DevicePlan) -> float:
    """Return the seconds in which one thread makes a device's part of a batch."""
    fed, seconds = {feed.tensor for feed in plan.feeds}, 0.0
    for split, lo, hi in {(slot.split, slot.lo, slot.hi) for slot in client.inputs if slot.tensor in fed}:
        together, times = pipeline.steps_together(hi - lo), []
        for number in range(WARM_UP + REPEATS):
            begin = time.perf_counter()
            pipeline.read_steps(split, range(number * together, (number + 1) * together), lo, hi)
            times.append(time.perf_counter() - begin)
        seconds += median(times[WARM_UP:]) / together
    return seconds


UNLIMITED_GBYTE_PER_S = 1e6  # rate of an emulated link without a limit, because the event loop needs a finite rate


@dataclass(frozen=True)
class ProfiledMachine:
    """A machine with a profile. cluster: its devices as in a run, so that the simulation has the plans of the run.

    costs_of: returns the costs of a kind of device.
    """

    hardware: Hardware
    cluster: Cluster
    costs_of: Callable[[DeviceKind], Costs]


def profiled_machine(config: Config, hardware: Hardware, program: Program) -> ProfiledMachine | None:
    """Return the machine that a profile describes, with the links that the run emulates; None without a profile.

    Raises Violation for several profiles, and ConfigError for an unreadable profile or for emulated stragglers.
    """
    named = {kind.profile for kind in hardware.kinds.values() if kind.profile is not None}
    if not named:
        return None
    if len(named) > 1:
        raise Violation(f"kinds: profiles {', '.join(sorted(named))}, expected one file for all kinds")
    profile = read_profile(Path(named.pop()))
    cores = min(kind.cores or profile.machine.cores for kind in hardware.kinds.values())
    threads, cores_each = share_of_worker(config, cores)
    kinds = {name: replace(kind, cores=kind.cores or profile.machine.cores) for name, kind in hardware.kinds.items()}
    links, network = hardware.links, network_of(hardware, program.workers, program.servers)
    if config.cluster.emulate:
        links = {wire.source: wire for wire in _emulated(config, hardware, program)}
    machine = replace(hardware, kinds=kinds, links=links, routes="shortest")
    shared = replace(config.cluster, threads_per_worker=threads, cores_per_worker=cores_each)
    cluster, remote = cluster_of(shared, program), program.one_process is None
    queued = config.cluster.emulate or len({network.nearest(task) for task in network.place}) > 1
    crowded = threads * len(network.place) > cores

    def costs_of(kind: DeviceKind) -> Costs:
        measured = None if kind.profile is None else profile
        return Costs(kind, measured, threads, config.data.name, remote, queued, crowded)

    return ProfiledMachine(machine, cluster, costs_of)


def _emulated(config: Config, hardware: Hardware, program: Program) -> Iterator[LinkDescription]:
    """Yield a link for each pair of processes, as :mod:`runner.engine.cluster.emulation` emulates them."""
    cluster = config.cluster
    if cluster.stragglers.distribution != DISTRIBUTIONS[0]:
        raise ConfigError(
            f"cluster.stragglers.distribution={cluster.stragglers.distribution}: a profiled machine is simulated "
            f"without stragglers; use {DISTRIBUTIONS[0]}"
        )
    rate = UNLIMITED_GBYTE_PER_S
    if cluster.bandwidth_mbit is not None:
        rate = 1e-9 * cluster.bandwidth_mbit * BYTES_PER_S_OF_MBIT
    named = places("workers", hardware.workers, program.workers)
    if hardware.servers is not None:
        named += places("servers", hardware.servers, program.servers)
    for one, other in combinations(named, 2):
        latency_us = 1e3 * (cluster.latency_ms or 0.0)
        yield LinkDescription([one, other], rate, latency_us, serial=True, source=f"emulated {one} {other}")
