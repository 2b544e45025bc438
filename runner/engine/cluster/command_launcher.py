"""A launcher whose processes are started on the hosts of a cluster by one command: ``srun``, or a program for Ray."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from runner.engine.cluster.launchers import RemoteLauncher, join_arguments, store_ticket
from runner.engine.cluster.processes import THREAD_VARIABLES, runner_command, thread_budget
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport.ticket import Ticket

SRUN = (
    *("srun", "--overlap", "--kill-on-bad-exit=1", "--wait=0", "--input=none", "--mpi=none"),
    *("--job-name=runner", "--quit-on-interrupt"),
)
"""The ``srun`` command, without the number of tasks. It ends all tasks when one task has failed.

With ``--overlap``, the tasks may use the CPUs that Slurm reserved for the master, which computes nothing.
"""

_OWN_KEY = 'folder=$1; shift; exec "$@" --key "$folder/$SLURM_PROCID.key" --host "$SLURMD_NODENAME"'
"""Shell script of an ``srun`` task. It reads the task number, which names the ticket, and the node from variables."""


@dataclass(frozen=True)
class CommandLauncher(RemoteLauncher):
    """Starts all processes by one command, which runs until all of them have ended, and ends all when one fails.

    If a process fails, the command reports it in its output as ``NAME: error: HOST: task NUMBER: REASON``. NUMBER is
    the position of the process in the order of the tickets; its ticket is in the file NUMBER.key.

    name: name of the command, for messages. command: returns the command line for the folder with the tickets, the
    arguments of ``runner`` without the ticket, and the number of processes. logs: folder for the output of the command.
    keys: folder for the tickets, which all hosts read; None if only this host does. threads: threads per process.
    """

    name: str
    address: str
    command: Callable[[Path, Sequence[str], int], Sequence[str]]
    logs: Path
    keys: Path | None
    threads: int
    options: Sequence[str] = ()
    join_s: float = 300.0
    lanes: int = 2
    replaces: ClassVar[bool] = False

    def start(self, tickets: Mapping[str, Ticket], address: str, supervisor: Supervisor, directory: Path) -> None:
        """Start the command. Raises ResourceError if a ticket cannot be written or the command cannot be started."""
        folder = self.keys or directory
        for number, ticket in enumerate(tickets.values()):
            store_ticket(folder / f"{number}.key", ticket)
        argv = self.command(folder, join_arguments(address, self.options), len(tickets))
        environment = {**os.environ, **thread_budget(self.threads)}
        supervisor.start(self.name, argv, self.logs / f"{self.name}.log", environment, list(tickets))

    def close(self) -> None:
        for path in self.keys.glob("*.key") if self.keys is not None else ():
            path.unlink(missing_ok=True)


def srun_command(threads: int) -> Callable[[Path, Sequence[str], int], list[str]]:
    """Return the command of Slurm that starts the processes in the job's allocation, each with ``threads`` CPUs."""

    def command(folder: Path, arguments: Sequence[str], count: int) -> list[str]:
        tasks = [f"--ntasks={count}", f"--cpus-per-task={threads}"]
        return [*SRUN, *tasks, "sh", "-c", _OWN_KEY, "sh", str(folder), *runner_command(), *arguments]

    return command


def ray_command(cluster: str, placement: str, threads: int, join_s: float) -> Callable[..., list[str]]:
    """Return the command that starts the processes as actors of Ray, each with ``threads`` CPUs.

    cluster: HOST:PORT of a running cluster, or "local" to start one on this host. placement: strategy of the placement
    group, such as PACK. join_s: longest time in seconds until Ray has room for all processes.
    """

    def command(folder: Path, arguments: Sequence[str], count: int) -> list[str]:
        options = [f"--address={cluster}", f"--placement={placement}", f"--threads={threads}", f"--join-s={join_s}"]
        options += [f"--count={count}", f"--keys={folder}", f"--variables={','.join(THREAD_VARIABLES)}"]
        return [*runner_command("runner.engine.cluster.ray_program"), *options, "--", *arguments]

    return command
