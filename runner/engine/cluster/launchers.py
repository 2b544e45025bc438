"""Launchers, which start the processes of a run. Processes do not depend on the launcher that started them.

Every process runs ``runner worker --join ADDRESS --key FILE``, where the file is the ticket of the process.
"""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from runner.engine.cluster.processes import SHORT_WAIT, runner_command, thread_budget
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport.heartbeat import SILENCE_S
from runner.engine.cluster.transport.messages import MASTER
from runner.engine.cluster.transport.private_directory import inbox_address
from runner.engine.cluster.transport.ticket import Ticket, write_ticket
from runner.engine.cluster.transport.zmq_sockets import PEER_LOST_MS
from runner.errors import ResourceError

LOOPBACK = "tcp://127.0.0.1:*"

Tickets = Mapping[str, Ticket]
Hosts = Mapping[str, str]
"""Process name -> ticket, and process name -> host."""


class Launcher(Protocol):
    """The interface of a launcher."""

    @property
    def has_keys(self) -> bool:
        """Whether processes connect over TCP, with CURVE keys."""

    @property
    def shares_memory(self) -> bool:
        """Whether processes that can share memory do so."""

    @property
    def join_s(self) -> float:
        """Seconds within which all processes must join."""

    @property
    def lanes(self) -> int:
        """Connections from one worker to another; see :class:`~runner.engine.cluster.transport.endpoint.Limits`."""

    @property
    def silence_s(self) -> float:
        """Seconds without a heartbeat after which a process counts as silent."""

    @property
    def spares(self) -> int:
        """Number of spare processes. They are started after the workers; each one that is used is replaced."""

    def listen(self, directory: Path) -> str:
        """Return the address of the master's inbox. directory: the private directory of the run."""

    def start(self, tickets: Tickets, address: str, supervisor: Supervisor, directory: Path, hosts: Hosts) -> None:
        """Start processes, or print the commands that start them.

        The first call starts all workers and parameter servers. Later calls start either replacements or spare
        processes. tickets: process name -> ticket. address: address of the master's inbox. directory: as in
        :meth:`listen`. hosts: process name -> host of the process (for a lost process, its last host); empty at the
        first call. Raises ResourceError if a process cannot be started; ClusterError if no host has room for one.
        """

    def host_of(self, name: str) -> str:
        """Return the host of the process ``name``, as the user named the host; "" if the user named none."""
        return ""

    def exchange(self, worker: str, spare: str) -> None:
        """Record that process ``spare`` is now ``worker``; the next ``spare`` may run on the lost worker's host."""
        return

    def close(self) -> None:
        """Remove the tickets that no process has read, unless they are in the private directory."""
        return


def store_ticket(path: Path, ticket: Ticket) -> None:
    """Write a ticket, and replace the file of an earlier start. Raises ResourceError if it cannot be written."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        write_ticket(path, ticket)
    except OSError as error:
        raise ResourceError(f"cannot write the key file {path}: {error.strerror}") from error


def join_arguments(address: str, options: Sequence[str], ticket: Path | None = None) -> list[str]:
    """Return the arguments with which ``runner`` joins a run; --key is omitted if ``ticket`` is None."""
    return ["worker", "--join", address, *options, *(["--key", str(ticket)] if ticket is not None else [])]


@dataclass(frozen=True)
class LocalLauncher(Launcher):
    """Starts all processes on this host. logs: folder for their logs. threads: kernel threads of each process.

    over_tcp: connect all processes over loopback TCP and share no memory, as if they were on different hosts.
    shares_cores: whether all processes together have more threads than the host has cores. options: additional
    command-line options, without secrets.
    """

    logs: Path
    threads: int
    options: Sequence[str] = ()
    over_tcp: bool = False
    shares_cores: bool = False
    join_s: float = 60.0
    lanes: int = 1
    silence_s: float = SILENCE_S
    spares: int = 0

    @property
    def has_keys(self) -> bool:
        return self.over_tcp

    @property
    def shares_memory(self) -> bool:
        return not self.over_tcp

    def listen(self, directory: Path) -> str:
        return LOOPBACK if self.over_tcp else inbox_address(directory, MASTER)

    def start(self, tickets: Tickets, address: str, supervisor: Supervisor, directory: Path, hosts: Hosts) -> None:
        """Start the processes. Raises ResourceError if one cannot be started."""
        options = ["--parent", str(os.getpid()), *self.options]
        # GNU OpenMP ignores the policy that the user has chosen if the number of reads is set.
        waiting = SHORT_WAIT if self.shares_cores and "OMP_WAIT_POLICY" not in os.environ else {}
        environment = {**waiting, **os.environ, **thread_budget(self.threads)}
        for name, ticket in tickets.items():
            path = directory / f"{ticket.run}.{name}.key"
            store_ticket(path, ticket)
            command = [*runner_command(), *join_arguments(address, options, path)]
            supervisor.start(name, command, self.logs / f"{name}.log", environment)


@dataclass(frozen=True, kw_only=True)
class RemoteLauncher(Launcher):
    """Base class of launchers for other hosts.

    address: ``tcp://HOST:PORT``, with ``*`` for any free port. options: as in :class:`LocalLauncher`.
    """

    address: str
    options: Sequence[str] = ()
    join_s: float = 300.0
    lanes: int = 2
    spares: int = 0
    silence_s: ClassVar[float] = PEER_LOST_MS / 1000
    has_keys: ClassVar[bool] = True
    shares_memory: ClassVar[bool] = True

    def listen(self, directory: Path) -> str:
        return self.address


@dataclass(frozen=True, kw_only=True)
class HostsLauncher(RemoteLauncher):
    """Prints a command for each process, which the user or a script runs on the host of the process.

    hosts: host of each process, also of spare processes. keys: folder for the tickets, which the user copies.
    announce: prints a line.
    """

    hosts: dict[str, str]
    keys: Path
    announce: Callable[[str], None]

    def start(self, tickets: Tickets, address: str, supervisor: Supervisor, directory: Path, hosts: Hosts) -> None:
        """Write the tickets and print the commands. Raises ResourceError if a ticket cannot be written."""
        for name, ticket in tickets.items():
            path = self._path(name)
            store_ticket(path, ticket)
            command = shlex.join(["runner", *join_arguments(address, self.options, path)])
            self.announce(f"{name}: copy {path} to {self.host_of(name)} with mode 0600, and run there\n  {command}")

    def host_of(self, name: str) -> str:
        return self.hosts[name]

    def exchange(self, worker: str, spare: str) -> None:
        self.hosts.update({worker: self.hosts[spare], spare: self.hosts[worker]})

    def close(self) -> None:
        """Remove the tickets from this host; a process that has joined no longer needs its ticket."""
        for name in self.hosts:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.keys / f"{name}.key"
