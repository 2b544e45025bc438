"""Profiles of this machine: their files, the measurement of instructions, and the simulated cluster of a profile."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median

from threadpoolctl import threadpool_limits

from runner.config.configuration import share_of_worker
from runner.config.schema import Config
from runner.data.source import source_from_config
from runner.engine.cluster.emulation import BYTES_PER_S_OF_MBIT
from runner.engine.compile.passes.transfers import TRANSFERS
from runner.engine.compile.program import Program
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph.device import DISTRIBUTIONS, Cluster
from runner.engine.run.instruction_times import REPEATS, WARM_UP, measured_seconds
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.recording import INPUT
from runner.engine.run.step_driver import bind
from runner.engine.simulate.costs import Costs
from runner.engine.simulate.hardware import DeviceKind, Hardware, LinkDescription, places
from runner.engine.simulate.network import network_of
from runner.engine.simulate.profile import (
    InstructionSignature,
    Machine,
    Profile,
    families_of,
    input_signature,
    signature_of,
)
from runner.errors import ConfigError
from runner.kernels.registry import Registry
from runner.records.summary import cpu_model, versions
from runner.system.json_file import JsonFile
from runner.system.machine import usable_cores
from runner.system.schema import Record, Violation
from runner.training.build import build, source_document
from runner.training.devices import cluster_of
from runner.training.experiment import Experiment

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
        return Profile(machine, None, None, None, ())
    found = read_profile(path)
    if found.machine != machine:
        raise ConfigError(f"profile {path}: recorded on {found.machine}, and this is {machine}; use another file")
    return found


def with_instructions(profile: Profile, config: Config, measured: set[InstructionSignature] | None = None) -> Profile:
    """Return a profile with the instructions of a configuration, measured in this process.

    config: as returned by ``fix_machine_values``, with the number of kernel threads. measured: signatures measured
    before; plans with only such signatures are skipped, and new signatures are added.
    """
    found = _measured(config, set() if measured is None else measured)
    return profile.with_families(families_of(found, config.cluster.threads_per_worker or 1))


def _measured(config: Config, seen: set[InstructionSignature]) -> Iterator[tuple[InstructionSignature, float]]:
    """Yield signature and seconds of each instruction of a training step, device by device.

    With one process, the time to read inputs is included. Plans whose signatures are all in ``seen`` are skipped.
    """
    registry, experiment = load_kernels(), build(config)
    threads = experiment.threads_per_worker
    with threadpool_limits(threads):
        planned = ProgramPlans(experiment.program, experiment.cluster, registry)
        initial = planned.plans(planned.client("init").signature)
        for client in experiment.program.training:
            for device, plan in planned.plans(client.signature).items():
                signatures = [signature_of(plan, each) for each in plan.instructions]
                if seen.issuperset(signatures):
                    continue
                seconds = measured_seconds(plan, initial.get(device), registry, threads)
                for signature, each in zip(signatures, seconds, strict=True):
                    if signature.op not in TRANSFERS:
                        yield signature, each
                seen.update(signatures)
        if experiment.program.one_process is not None:
            yield from _inputs(experiment, registry)


def _inputs(experiment: Experiment, registry: Registry) -> Iterator[tuple[InstructionSignature, float]]:
    """Yield the time of reading the inputs of a step in one process, for each client and device."""
    config, program = experiment.config, experiment.program
    with (
        source_from_config(**source_document(config)) as source,
        closing(LocalSession(program, experiment.cluster, registry, source)) as session,
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

    def costs_of(kind: DeviceKind) -> Costs:
        measured = None if kind.profile is None else profile
        return Costs(kind, measured, threads, config.data.name, remote, queued)

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
