"""The supervisor, with which the master starts, watches, replaces and ends its worker processes."""

import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.engine.cluster.command_process import CommandProcess
from runner.engine.cluster.processes import KILL_S, End, WorkerProcess, wait_for_any
from runner.engine.cluster.transport.messages import is_spare
from runner.errors import ClusterError

_TASK_REPORT_S = 2.0
_REPORT_S = 0.2


class Supervisor:
    """The processes that the master has started. A context manager that ends all of them on exit.

    workers: name -> process on this host: a worker, a spare process, or a command that starts these on other hosts.
    The end of a spare process is no failure: the run goes on.

    Use a supervisor in one thread only. This thread must live as long as the workers, because the kernel sends the
    signal of :func:`~runner.engine.cluster.processes.die_with_parent` when the *thread* that started a process ends.
    """

    def __init__(self, grace_s: float = 2.0) -> None:
        """``grace_s``: seconds between SIGTERM and SIGKILL on exit."""
        self.workers: dict[str, WorkerProcess] = {}
        self._grace_s = grace_s
        self._ended: list[End] = []
        self._leaving = False

    def start(
        self,
        name: str,
        argv: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str],
        tasks: Sequence[str] | None = None,
        nodes: Sequence[str] = (),
    ) -> WorkerProcess:
        """Start and watch a process.

        environment: all variables, including those of :func:`~runner.engine.cluster.processes.thread_budget`. tasks:
        None unless the process is a command that starts workers. tasks, nodes: see :class:`CommandProcess`.
        """
        if name in self.workers:
            raise ValueError(f"{name} is already started")
        given = (name, argv, log_path, environment)
        process = self.workers[name] = WorkerProcess(*given) if tasks is None else CommandProcess(*given, tasks, nodes)
        return process

    @property
    def commands(self) -> list[CommandProcess]:
        """The commands that start workers."""
        return [process for process in self.workers.values() if isinstance(process, CommandProcess)]

    @property
    def started(self) -> set[str]:
        """Names of all workers and spare processes that this supervisor or one of its commands has started."""
        return {name for process in self.workers.values() for name in process.tasks}

    def end_idle_commands(self) -> None:
        """End the commands whose workers have all been given up, and free their names."""
        idle = [command for command in self.commands if not command.tasks]
        for command in idle:
            command.send_signal(signal.SIGTERM)  # then ``srun`` also kills its tasks, which may be frozen
        for command in idle:
            wait_for_any([command], KILL_S)
            self.remove(command.name)

    def rename(self, spare: str, worker: str, log_path: Path) -> str:
        """Make a spare process the process of ``worker``, which was removed.

        Returns ``log_path``, the log of the worker, if the spare process is on this host and must now write there;
        else "".
        """
        for command in self.commands:
            if spare in command.tasks:
                command.rename(spare, worker)
        if (process := self.workers.pop(spare, None)) is None:
            return ""
        self.workers[worker] = process
        process.take_name(worker, log_path)
        return str(log_path)

    @property
    def report_s(self) -> float:
        """Longest time in seconds until the supervisor notices the end of a worker."""
        return _TASK_REPORT_S if self.commands else _REPORT_S

    @property
    def pidfds(self) -> list[int]:
        """One descriptor per process that runs workers, which becomes readable when the process dies."""
        return [process.fileno() for process in self.workers.values() if not all(map(is_spare, process.tasks))]

    def expect_exits(self) -> None:
        """Allow all processes to exit: from now on, an exit with code 0 does not count as a failure."""
        self._leaving = True
        for command in self.commands:
            command.end_input()

    def is_stopped(self, name: str) -> bool:
        """Return whether ``name`` is a process of this host that is stopped by a signal such as SIGSTOP."""
        return name in self.workers and self.workers[name].is_stopped

    def remove(self, name: str) -> None:
        """Kill a process, wait for its end and free its name; raises ClusterError if the process survives SIGKILL.

        The process of a worker that a command has started is given up: its end is no longer reported.
        """
        for command in self.commands:
            if name in command.tasks:
                command.give_up(name)
        if (worker := self.workers.get(name)) is not None:
            worker.kill()
            if not wait_for_any([worker], KILL_S):
                raise _survivor_of_sigkill([worker])
            worker.poll()
            worker.close()
            del self.workers[name]
        self._ended = [each for each in self._ended if each.name != name]

    @property
    def ended(self) -> list[str]:
        """Names of the workers and spare processes that have ended."""
        self._update()
        return [end.name for end in self._ended]

    @property
    def has_crashed(self) -> bool:
        """Whether a signal has killed a worker. Errors that other workers report are then consequences."""
        return any(end.has_crashed for end in self._failures())

    def failure(self) -> ClusterError | None:
        """Return the error of the first unexpected end, the likely cause, with the later ends; None without one."""
        match self._failures():
            case [first, *later]:
                return first.lost([f"Later, {end.name} {end.ending}." for end in later])
        return None

    def first_failed(self) -> str:
        """Return the name of the first worker that died unexpectedly, or "" if there is none."""
        return next((end.name for end in self._failures()), "")

    def _failures(self) -> list[End]:
        """Return the unexpected ends of workers, the likely cause first."""
        self._update()
        return [end for end in self._ended if not (is_spare(end.name) or (self._leaving and end.is_regular))]

    def wait_for_exit(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds for all workers to end; return whether all have ended."""
        deadline = time.monotonic() + timeout_s
        while living := self._update():
            if not wait_for_any(living, deadline - time.monotonic()):
                return False
        return True

    def terminate_all(self, grace_s: float) -> None:
        """End all workers: SIGTERM, then after ``grace_s`` seconds a stack dump and SIGKILL.

        Raises ClusterError if a worker survives SIGKILL, which happens only in an uninterruptible system call.
        """
        for worker in self._update():
            worker.send_signal(signal.SIGTERM)
        if not self.wait_for_exit(grace_s):
            for worker in self._update():
                worker.dump_stack()
                worker.kill()
            if not self.wait_for_exit(KILL_S):
                raise _survivor_of_sigkill(self._update())

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate_all(self._grace_s)
        for process in self.workers.values():
            process.close()

    def _update(self) -> list[WorkerProcess]:
        """Record the ends of workers since the last call, likely cause first; return the processes that still run."""
        known = {end.name for end in self._ended}
        new = [end for process in self.workers.values() for end in process.ends if end.name not in known]
        self._ended += sorted(new, key=lambda end: end.rank)
        return [process for process in self.workers.values() if process.exit is None]


def _survivor_of_sigkill(workers: Sequence[WorkerProcess]) -> ClusterError:
    names = ", ".join(f"{worker.name} (pid {worker.pid})" for worker in workers)
    return ClusterError(f"{names} still running {KILL_S:g} s after SIGKILL: stuck in the kernel")
