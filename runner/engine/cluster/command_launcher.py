"""Launchers whose processes are started on the hosts of a cluster by a command: ``srun``, or a program for Ray."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.engine.cluster.launchers import Hosts, RemoteLauncher, Tickets, join_arguments, store_ticket
from runner.engine.cluster.processes import THREAD_VARIABLES, runner_command, thread_budget
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport.messages import is_spare
from runner.errors import ClusterError

SRUN = (
    *("srun", "--overlap", "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--input=none", "--mpi=none"),
    *("--job-name=runner", "--quit-on-interrupt"),
)
"""The ``srun`` command, without its tasks. It goes on when a task has failed or a node is lost.

With ``--overlap``, the tasks may use the CPUs that Slurm reserved for the master, which computes nothing, and
replacements may use the CPUs of lost tasks.
"""

_OWN_KEY = 'prefix=$1; shift; exec "$@" --key "$prefix$SLURM_PROCID.key" --host "$SLURMD_NODENAME"'
"""Shell script of an ``srun`` task. It reads the task number, which names the ticket, and the node from variables."""


@dataclass(frozen=True, kw_only=True)
class CommandLauncher(RemoteLauncher):
    """Base class of launchers that start processes by a command; see ``CommandProcess``.

    logs: folder for the output of the commands. threads: threads of each process.
    """

    logs: Path
    threads: int

    def _start_command(
        self, name: str, argv: Sequence[str], supervisor: Supervisor, tasks: Sequence[str], nodes: Sequence[str] = ()
    ) -> None:
        environment = {**os.environ, **thread_budget(self.threads)}
        supervisor.start(name, argv, self.logs / f"{name}.log", environment, tasks, nodes)


@dataclass(frozen=True, kw_only=True)
class SlurmLauncher(CommandLauncher):
    """Starts all workers by one ``srun`` in the allocation of the job, and other processes by a further ``srun``.

    keys: folder for the tickets, which all nodes read. nodes: returns node -> CPUs of the job, for the nodes of the
    allocation that have not failed.
    """

    keys: Path
    nodes: Callable[[], Mapping[str, int]]

    def start(self, tickets: Tickets, address: str, supervisor: Supervisor, directory: Path, hosts: Hosts) -> None:
        """Start ``srun``; raises ResourceError if it cannot be started, and the errors of :func:`placed`."""
        supervisor.end_idle_commands()
        epoch = next(iter(tickets.values())).epoch
        name, tasks, nodes = "srun", [f"--ntasks={len(tickets)}", f"--cpus-per-task={self.threads}"], list[str]()
        if hosts:
            name = f"srun-{epoch}" + "-spares" * is_spare(next(iter(tickets)))
            nodes = self._placed(list(tickets), hosts, supervisor)
            tasks += ["--distribution=arbitrary", f"--nodelist={','.join(nodes)}"]
        prefix = self.keys / f"{name}-"
        for number, ticket in enumerate(tickets.values()):
            store_ticket(Path(f"{prefix}{number}.key"), ticket)
        script = ["sh", "-c", _OWN_KEY, "sh", str(prefix)]
        argv = [*SRUN, *tasks, *script, *runner_command(), *join_arguments(address, self.options)]
        self._start_command(name, argv, supervisor, list(tickets), nodes)

    def _placed(self, names: Sequence[str], hosts: Hosts, supervisor: Supervisor) -> list[str]:
        """Return the nodes of processes to start; see :func:`placed`, whose errors this method raises.

        Started processes occupy their nodes even before they join. If no node is left for a worker, spare processes
        that have not joined do not count: with ``--overlap``, processes may share CPUs.
        """
        started = {name: node for command in supervisor.commands for name, node in command.nodes.items()}
        living = {name: node for name, node in started.items() if name not in supervisor.ended}
        nodes = self.nodes()
        try:
            return placed(names, {**hosts, **living}, nodes, self.threads)
        except ClusterError:
            if is_spare(names[0]):
                raise
            workers = {name: node for name, node in living.items() if not is_spare(name)}
            return placed(names, {**hosts, **workers}, nodes, self.threads)

    def close(self) -> None:
        for path in self.keys.glob("*.key"):
            path.unlink(missing_ok=True)


def placed(names: Sequence[str], hosts: Hosts, cpus: Mapping[str, int], threads: int) -> list[str]:
    """Return the node of each process to start: its last node or, if it had none or the node has failed, one with room.

    hosts: process -> its node, or its last node if it is lost. cpus: node -> CPUs, for the nodes that have not failed.
    threads: CPUs of each process. Raises ClusterError if there is no room.
    """
    free = {node: count // threads for node, count in cpus.items()}
    for node in [hosts[name] for name in hosts.keys() - set(names)] + [hosts.get(name, "") for name in names]:
        if node in free:
            free[node] -= 1
    chosen = []
    for name in names:
        node = hosts.get(name, "")
        if node not in free:
            node = next((each for each, count in free.items() if count > 0), "")
            if not node:
                raise ClusterError(
                    f"{name} cannot be started: expected a node of the allocation with {threads} unused CPUs; "
                    f"nodes that have not failed: {', '.join(cpus) or 'none'}; a cancelled or requeued job loses "
                    "its nodes"
                )
            free[node] -= 1
        chosen.append(node)
    return chosen


@dataclass(frozen=True, kw_only=True)
class RayLauncher(CommandLauncher):
    """Starts the processes as actors of Ray, by a program that runs until the end of the run.

    cluster: HOST:PORT of a running cluster, or "local" to start one on this host. placement: strategy of the placement
    group, such as PACK.
    """

    cluster: str
    placement: str

    def start(self, tickets: Tickets, address: str, supervisor: Supervisor, directory: Path, hosts: Hosts) -> None:
        """Start the program, or request processes from it. Raises ResourceError if it cannot be started."""
        supervisor.end_idle_commands()
        if not supervisor.commands:
            for number, ticket in enumerate(tickets.values()):
                store_ticket(directory / f"{number}.key", ticket)
            self._start_command("ray", self._command(directory, address, len(tickets)), supervisor, list(tickets))
            return
        (program,) = supervisor.commands
        for name, ticket in tickets.items():
            number, bundle = program.add(name)
            store_ticket(directory / f"{number}.key", ticket)
            program.write_line(f"{number} {bundle}")

    def _command(self, folder: Path, address: str, count: int) -> list[str]:
        options = [f"--address={self.cluster}", f"--placement={self.placement}", f"--threads={self.threads}"]
        options += [f"--join-s={self.join_s}", f"--count={count}", f"--spares={self.spares}", f"--keys={folder}"]
        options += [f"--variables={','.join(THREAD_VARIABLES)}"]
        program = runner_command("runner.engine.cluster.ray_program")
        return [*program, *options, "--", *join_arguments(address, self.options)]
