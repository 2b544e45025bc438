"""A machine with a profile as a simulated cluster: the plans, the threads and the links of a run on this machine."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from runner.config.configuration import fix_machine_values
from runner.config.schema import Config
from runner.engine.cluster.emulation import BYTES_PER_S_OF_MBIT
from runner.engine.compile.program import Program
from runner.engine.graph.device import DISTRIBUTIONS, Cluster
from runner.engine.simulate.costs import Costs
from runner.engine.simulate.hardware import DeviceKind, Hardware, Wire, places
from runner.engine.simulate.profile import Profile
from runner.errors import ConfigError
from runner.system.schema import Violation
from runner.training.devices import cluster_of
from runner.training.profiles import read_profile

UNLIMITED_GBYTE_PER_S = 1e6
"""Rate of an emulated link without a limit, for which the event loop needs a finite number."""


@dataclass(frozen=True)
class ProfiledMachine:
    """A machine with a profile. cluster: its devices as a run sees them, so that the simulation has the run's plans.

    threads: kernel threads of each process. data: name of the dataset. remote: whether each device is a process.
    """

    hardware: Hardware
    cluster: Cluster
    profile: Profile
    threads: int
    data: str
    remote: bool

    def costs_of(self, kind: DeviceKind) -> Costs:
        """Return the costs of a kind of device."""
        profile = self.profile if kind.profile is not None else None
        return Costs(kind, profile, self.threads, self.data, self.remote)


def profiled_machine(config: Config, hardware: Hardware, program: Program) -> ProfiledMachine | None:
    """Return the machine that a profile describes, with the links that the run emulates; None without a profile.

    Raises Violation for several profiles, and ConfigError for one that cannot be read, or for emulated stragglers.
    """
    named = {kind.profile for kind in hardware.kinds.values() if kind.profile is not None}
    if not named:
        return None
    if len(named) > 1:
        raise Violation(f"kinds: profiles {', '.join(sorted(named))}, expected one file for all kinds")
    profile = read_profile(Path(named.pop()))
    cores = min(kind.cores or profile.machine.cores for kind in hardware.kinds.values())
    fixed = fix_machine_values(config, cores)
    kinds = {name: replace(kind, cores=kind.cores or profile.machine.cores) for name, kind in hardware.kinds.items()}
    links = hardware.links
    if config.cluster.emulate:
        links = {wire.source: wire for wire in _emulated(config, hardware, program)}
    return ProfiledMachine(
        replace(hardware, kinds=kinds, links=links, routes="shortest"),
        cluster_of(fixed.cluster, program),
        profile,
        fixed.cluster.threads_per_worker or 1,
        config.data.name,
        program.one_process is None,
    )


def _emulated(config: Config, hardware: Hardware, program: Program) -> Iterator[Wire]:
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
    named = places(hardware.workers, program.workers)
    if hardware.servers is not None:
        named += places(hardware.servers, program.servers)
    for one, other in combinations(named, 2):
        latency_us = 1e3 * (cluster.latency_ms or 0.0)
        yield Wire([one, other], rate, latency_us, serial=True, source=f"emulated {one} {other}")
