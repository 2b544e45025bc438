"""Hosts whose cores are shared by the processes of a run, the threads that relay messages, and the master.

The event loop models CPU time on a shared host as a transfer over two links: one for the threads of the process, one
for the cores of the host. If more threads are ready than cores exist, max-min fairness divides the cores
equally among the threads, as the scheduler of the operating system does on average. A third link stands for caches and
memory, by which processes slow one another down while all of them compute.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from runner.engine.simulate.costs import Costs
from runner.engine.simulate.profile import MessageCosts


@dataclass(frozen=True)
class HostShare:
    """The use of a host's cores by one process.

    compute, relay: the links of the kernel threads, with that of caches and memory if processes compete for them, and
    of the threads that relay messages and make batches. threads: number of kernel threads. messages: the costs of a
    message; None if not measured, or if all devices are in one process. master, master_unit: the links and the unit of
    the event loop for the master, which all processes share. batch_s: seconds in which a thread makes the next batch,
    during a step.
    """

    compute: tuple[int, ...]
    relay: tuple[int, int]
    threads: int
    messages: MessageCosts | None
    master: tuple[int, int]
    master_unit: int
    batch_s: float = 0.0

    @property
    def latency_s(self) -> float:
        """Seconds between the end of the work of a sender and the arrival at the receiver's process."""
        return 0.0 if self.messages is None else 1e-6 * self.messages.latency


def shared_hosts(
    host_of: Mapping[str, str],
    costs_of: Mapping[str, Costs],
    slowdown_of: Mapping[str, float],
    *,
    first_link: int,
    master_unit: int,
) -> tuple[dict[str, HostShare], list[float]]:
    """Return the share of each device, and the capacities of the new links, which are numbered from ``first_link``.

    host_of: device -> name of its host; the master is on the first of these hosts. costs_of: device -> its costs, whose
    kind states the number of cores of the host. slowdown_of: host -> factor by which instructions take longer while all
    of its processes compute.
    """
    capacities: list[float] = []

    def link(capacity: float) -> int:
        capacities.append(capacity)
        return first_link + len(capacities) - 1

    cores = {host: costs_of[device].kind.cores or 1 for device, host in host_of.items()}
    of_host = {host: link(float(count)) for host, count in cores.items()}
    if not of_host:
        return {}, []
    threads: dict[str, int] = {}
    for device, host in host_of.items():
        threads[host] = threads.get(host, 0) + costs_of[device].threads
    slowed = {host: factor for host, factor in slowdown_of.items() if factor > 1.0}
    memory = {host: (link(min(cores[host], threads[host]) / factor),) for host, factor in slowed.items()}
    master = link(1.0), next(iter(of_host.values()))
    shares = {}
    for device, host in host_of.items():
        costs, cpu = costs_of[device], of_host[host]
        compute, relay = (link(float(costs.threads)), cpu, *memory.get(host, ())), (link(1.0), cpu)
        shares[device] = HostShare(compute, relay, costs.threads, costs.messages, master, master_unit)
    return shares, capacities
