"""The processes that have joined a run, and the facts from which the master decides which processes may join."""

import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.engine.cluster.launchers import Launcher
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport.heartbeat import Reason, Verdict
from runner.engine.cluster.transport.messages import Hello, heartbeat_of
from runner.engine.cluster.transport.private_directory import SHARED_MEMORY

HOST, MEMORY = "host", "memory"
"""Names of the facts that may differ between the processes of a run; all other facts must be equal."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESS_IDS = Path("/proc/self/ns/pid")


def host_facts(name: str = "") -> dict[str, str]:
    """Return the name of this host, and a memory id, which is equal in two processes only if they share memory.

    name: the name that the launcher gives to this host; "" for its own name. Processes share memory if they have the
    same kernel, /dev/shm, namespace of process ids and user. Each container usually has a separate namespace.
    """
    boot = _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else platform.node()
    memory = SHARED_MEMORY.stat().st_dev if SHARED_MEMORY.is_dir() else 0
    ids = _PROCESS_IDS.stat().st_ino if _PROCESS_IDS.exists() else 0
    return {HOST: name or platform.node(), MEMORY: f"{boot}/{memory}/{ids}/{os.geteuid()}"}


def difference(found: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Return the reason why a process with the facts ``found`` may not join, or ""."""
    names = sorted({*found, *expected} - {HOST, MEMORY})
    different = [name for name in names if found.get(name) != expected.get(name)]
    faults = [f"{name} is {found.get(name, 'missing')}, expected {expected.get(name, 'none')}" for name in different]
    return f"{'; '.join(faults)}, as in the process that started the run" if faults else ""


@dataclass
class Joined:
    """The processes that have joined a run. facts: the master's facts. hellos, spares: worker or spare -> its hello."""

    workers: Sequence[str]
    facts: Mapping[str, str]
    launcher: Launcher
    supervisor: Supervisor
    hellos: dict[str, Hello] = field(default_factory=dict)
    spares: dict[str, Hello] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._shared: set[str] = set()  # lost workers that shared memory with the master
        self._left: dict[str, str] = {}  # hosts of lost workers

    def remove(self, worker: str) -> None:
        """Forget a worker that was lost; another process may take its place."""
        if self._shares_memory(worker):
            self._shared.add(worker)
        if worker in self.hellos:
            self._left[worker] = self.hellos.pop(worker).facts.get(HOST, "")

    def take_spare(self, worker: str, ready: Collection[str]) -> str | None:
        """Remove and return a spare process in ``ready`` for a lost worker, if possible on the host of the worker.

        Returns None if no spare process may join as ``worker``.
        """
        able = [spare for spare, hello in self.spares.items() if spare in ready and not self.refusal(worker, hello)]
        if not able:
            return None
        host = self._left.get(worker)
        spare = next((each for each in able if self.spares[each].facts.get(HOST, "") == host), able[0])
        self._left[worker] = self.spares.pop(spare).facts.get(HOST, "")
        return spare

    @property
    def hosts(self) -> dict[str, str]:
        """Process -> host that it has reported, for all spare processes, and for all workers that have ever joined."""
        return self._left | {name: each.facts.get(HOST, "") for name, each in {**self.hellos, **self.spares}.items()}

    def refusal(self, worker: str, hello: Hello) -> str:
        """Return the reason why a process may not join as ``worker``, or "".

        Plans of a lost worker may be in shared memory, which a process on another host cannot open.
        """
        if worker in self._shared and hello.facts.get(MEMORY) != self.facts.get(MEMORY):
            return f"the lost {worker} shared memory with the master: start its replacement on the host of the master"
        return difference(hello.facts, self.facts)

    @property
    def sharing(self) -> list[str]:
        """The workers that share memory with the master and with one another."""
        return list(filter(self._shares_memory, self.workers)) if self.launcher.shares_memory else []

    def _shares_memory(self, worker: str) -> bool:
        hello = self.hellos.get(worker)
        return hello is not None and hello.facts.get(MEMORY) == self.facts.get(MEMORY)

    def is_remote(self, worker: str) -> bool:
        """Return whether a worker may be on another host, with another clock."""
        return self.launcher.has_keys and worker not in self.sharing

    @property
    def unwatched(self) -> set[str]:
        """The workers whose processes the supervisor does not watch; they may be on other hosts."""
        return self.hellos.keys() - self.supervisor.workers.keys()

    def senders(self, workers: Collection[str]) -> set[str]:
        """Return ``workers`` and the heartbeat threads of those whose log lines the master receives."""
        return {*workers, *map(heartbeat_of, self.unwatched.intersection(workers))}

    def host_of(self, worker: str) -> str:
        """Return the host of a worker, as the user named it or as the joined worker reported it; "" if unknown."""
        reported = self.hellos[worker].facts.get(HOST, "") if worker in self.unwatched else ""
        return self.launcher.host_of(worker) or reported

    def named(self, worker: str) -> str:
        """Return the name of a worker, with its host if the worker is not a process that the master started."""
        return f"{worker} on {self.host_of(worker)}" if self.host_of(worker) else worker

    def describe(self, verdict: Verdict, log_path: Path) -> str:
        """Return the text of an error about a silent or stuck worker; make a worker of this host dump its stacks."""
        process = self.supervisor.workers.get(verdict.worker)
        if process is None:
            host = self.host_of(verdict.worker)
            return f"{verdict}; the host {host} may be stopped or disconnected; see the log {log_path}"
        if verdict.reason is Reason.STOPPED:
            return f"{verdict}; a signal has stopped the process; see the log {log_path}"
        process.dump_stack()
        return f"{verdict}; the stacks of its threads are in the log {log_path}, unless the process is stopped"

    def on_host_of(self, worker: str) -> list[str]:
        """Return the workers on the host of ``worker``, including ``worker``; none if no worker has this name."""
        host = self.host_of(worker)
        return [each for each in self.workers if each == worker or (host and self.host_of(each) == host)]
