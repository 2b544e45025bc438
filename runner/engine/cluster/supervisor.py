"""The supervisor, with which the master starts, watches, replaces and ends its worker processes."""

import signal
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from runner.engine.cluster.processes import KILL_S, WorkerProcess, wait_for_any
from runner.errors import ClusterError

_TASK_REPORT_S = 2.0
_REPORT_S = 0.2


class Supervisor:
    """All workers of a run. A context manager that ends all processes on exit.

    spares: name -> spare process, which waits to take the place of a worker. If a spare process ends, the run goes on.

    Use a supervisor in one thread only. This thread must live as long as the workers, because the kernel sends the
    signal of :func:`~runner.engine.cluster.processes.die_with_parent` when the *thread* that started a process ends.
    """

    def __init__(self, grace_s: float = 2.0) -> None:
        """``grace_s``: seconds between SIGTERM and SIGKILL on exit."""
        self.workers: dict[str, WorkerProcess] = {}
        self.spares: dict[str, WorkerProcess] = {}
        self._spare_numbers = count()
        self._grace_s = grace_s
        self._exited: list[WorkerProcess] = []
        self._leaving = False

    def start(
        self, name: str, argv: Sequence[str], log_path: Path, environment: Mapping[str, str], tasks: Sequence[str] = ()
    ) -> WorkerProcess:
        """Start and watch a process. tasks: see :class:`~runner.engine.cluster.processes.WorkerProcess`.

        environment: all variables, including those of :func:`~runner.engine.cluster.processes.thread_budget`.
        """
        if name in self.workers:
            raise ValueError(f"{name} is already started")
        worker = self.workers[name] = WorkerProcess(name, argv, log_path, environment, tasks)
        return worker

    def next_spare(self) -> str:
        """Return a name that no spare process of this supervisor has had."""
        return f"spare-{next(self._spare_numbers)}"

    def start_spare(self, name: str, argv: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> None:
        """Start a process that waits until it takes the place of a worker."""
        self.spares[name] = WorkerProcess(name, argv, log_path, environment, is_spare=True)

    def drop_ended_spares(self) -> None:
        """Forget the spare processes that have ended."""
        for name, process in list(self.spares.items()):
            if process.poll() is not None:
                process.close()
                del self.spares[name]

    def take_spare(self, worker: str) -> str | None:
        """Make a spare process the process of ``worker`` and return the spare's name; None if there is no spare.

        The caller then writes a ticket for the spare process and calls :meth:`WorkerProcess.take_over`.
        """
        while self.spares:
            name, process = next(iter(self.spares.items()))
            del self.spares[name]
            if process.poll() is None and not process.is_stopped:
                process.name = worker
                self.workers[worker] = process
                return name
            process.kill()
            wait_for_any([process], KILL_S)
            process.poll()
            process.close()
        return None

    @property
    def report_s(self) -> float:
        """Longest time in seconds until this process notices the end of a worker."""
        return _TASK_REPORT_S if any(worker.tasks for worker in self.workers.values()) else _REPORT_S

    @property
    def pidfds(self) -> list[int]:
        """One descriptor per worker, which becomes readable when the worker dies."""
        return [worker.fileno() for worker in self.workers.values()]

    def expect_exits(self) -> None:
        """Allow all processes to exit: from now on, an exit with code 0 does not count as a failure."""
        self._leaving = True

    def is_stopped(self, name: str) -> bool:
        """Return whether ``name`` is a process of this host that is stopped by a signal such as SIGSTOP."""
        return name in self.workers and self.workers[name].is_stopped

    def remove(self, name: str) -> None:
        """Kill a process, wait for its end and free its name; raises ClusterError if the process survives SIGKILL."""
        worker = self.workers[name]
        worker.kill()
        if not wait_for_any([worker], KILL_S):
            raise _survivor_of_sigkill([worker])
        worker.poll()
        worker.close()
        self._exited = [each for each in self._exited if each is not worker]
        del self.workers[name]

    @property
    def ended(self) -> list[str]:
        """Names of the processes that have ended."""
        self._update()
        return [worker.name for worker in self._exited]

    @property
    def has_crashed(self) -> bool:
        """Whether a signal has killed a worker. Errors that other workers report are then consequences."""
        return any(worker.exit is not None and worker.exit.code < 0 for worker in self._failed_workers())

    def failure(self) -> ClusterError | None:
        """Return the error of the first unexpected death, the likely cause, naming the later ones; None without one."""
        match self._failed_workers():
            case [first, *later]:
                return first.lost([f"Later, {worker.name} {worker.exit}." for worker in later])
        return None

    def first_failed(self) -> str:
        """Return the name of the first worker that died unexpectedly, or "" if there is none."""
        return next((worker.failed_task()[0] for worker in self._failed_workers()), "")

    def _failed_workers(self) -> list[WorkerProcess]:
        """Return the workers that have died unexpectedly, the likely cause first."""
        self._update()
        return [each for each in self._exited if not (self._leaving and each.exit and each.exit.code == 0)]

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
        for spare in self.spares.values():
            spare.kill()
        self.terminate_all(self._grace_s)
        for spare in self.spares.values():
            wait_for_any([spare], KILL_S)
            spare.poll()
        for process in (*self.workers.values(), *self.spares.values()):
            process.close()
        self.spares.clear()

    def _update(self) -> list[WorkerProcess]:
        """Record the workers that have ended since the last call, likely cause first; return the living ones."""
        ended: list[tuple[int, str]] = []
        living: list[WorkerProcess] = []
        for worker in self.workers.values():
            if worker in self._exited:
                continue
            if exit_ := worker.poll():
                ended.append((exit_.rank, worker.name))
            else:
                living.append(worker)
        self._exited += [self.workers[name] for _, name in sorted(ended)]
        return living


def _survivor_of_sigkill(workers: Sequence[WorkerProcess]) -> ClusterError:
    names = ", ".join(f"{worker.name} (pid {worker.pid})" for worker in workers)
    return ClusterError(f"{names} still running {KILL_S:g} s after SIGKILL: stuck in the kernel")
