"""Worker processes: the master starts, watches and ends them; a worker dies when its master dies.

Workers are started by ``subprocess`` and not by ``os.fork``, which the threads of ZeroMQ and OpenMP do not survive.
Each worker starts a new POSIX session, so that Ctrl-C at the terminal reaches only the master. The master polls its
inbox together with a pidfd for each worker, which becomes readable when the worker dies. Linux only.
"""

import ctypes
import faulthandler
import importlib.util
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.errors import ClusterError, Interrupted, ResourceError, RunnerError, WorkerLostError
from runner.system.text import printable_lines

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Environment variables that limit the threads of numerical libraries; a library reads its variable when loaded."""

STACK_SIGNAL = signal.SIGUSR1
TAIL_LINES = 20

_TASK_ENDED = re.compile(r"\w+: error: (\S+): tasks? (\d+)[-,\d]*: (.+)")
"""How ``srun`` reports the end of a task: the command, the node, the first of the tasks, and how it ended."""

_TASK_LINES = 400
_TASK_REPORT_S = 2.0
_REPORT_S = 0.2
_TAIL_BYTES = 16 * 2**10
_STACK_S = 0.5
_KILL_S = 5.0
_PR_SET_PDEATHSIG = 1
_VMSTAT = Path("/proc/vmstat")
_SIGNAL_NAMES = {signum.value: signum.name for signum in signal.Signals}
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
_CLASS_OF_CODE = {error.exit_code: error.__name__ for error in RunnerError.__subclasses__() if error is not Interrupted}


def thread_budget(threads: int) -> dict[str, str]:
    """Return the environment variables that limit every numerical library to ``threads`` threads."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def runner_command() -> list[str]:
    """Return the beginning of a command line that runs ``runner`` from the source files of this process.

    The option -P keeps the script's folder off ``sys.path``, so that no file there is imported instead of a library.
    """
    spec = importlib.util.find_spec("runner.__main__")
    assert spec is not None
    assert spec.origin is not None
    return [sys.executable, "-P", spec.origin]


def tail(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a log, taken from its last 16 KiB, escaped and shortened for a terminal."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            content = file.read(_TAIL_BYTES)
    except OSError as error:
        return [f"({path} cannot be read: {error.strerror})"]
    return printable_lines(content.decode("utf-8", "replace"), lines)


def oom_kills(path: Path = _VMSTAT) -> int | None:
    """Return how many processes of this host the kernel has killed for lack of memory; None if it does not report it.

    The count includes kills at the memory limit of a control group. It does not name the processes.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


@dataclass(frozen=True)
class Exit:
    """The end of a process.

    code: exit code, or the negative number of the signal. after_s: seconds since its start. oom_kills: number of
    processes of this host that the kernel killed for lack of memory meanwhile; None if it is not known.
    """

    code: int
    after_s: float
    oom_kills: int | None = None

    @classmethod
    def after(cls, code: int, begun: float, kills: int | None) -> "Exit":
        """Return the end that a process has now. begun: when it started. kills: ``oom_kills()`` at that time."""
        now = oom_kills()
        return cls(code, time.monotonic() - begun, None if now is None or kills is None else now - kills)

    def __str__(self) -> str:
        unknown = self.code == -signal.SIGKILL and self.oom_kills is None
        return f"{self.cause}{' (often for lack of memory: see dmesg)' if unknown else ''} after {self.after_s:.1f} s"

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel probably killed this process for lack of memory; its count names no process."""
        return self.code == -signal.SIGKILL and bool(self.oom_kills)

    @property
    def cause(self) -> str:
        """How the process ended, as a text that is equal for equal ends."""
        if self.code < 0:
            why = ", probably for lack of memory," if self.out_of_memory else ""
            return f"was killed by {_SIGNAL_NAMES.get(-self.code, f'signal {-self.code}')}{why}"
        meaning = f" ({_CLASS_OF_CODE[self.code]})" if self.code in _CLASS_OF_CODE else ""
        return f"exited with code {self.code}{meaning}"

    def error(self, worker: str, message: str) -> ClusterError:
        """Return the error of a worker that ended like this: a WorkerLostError unless new processes would end too.

        A worker exits with the code of a class of errors after an error that a repetition does not remove.
        """
        if self.code in _CLASS_OF_CODE and self.code != ClusterError.exit_code:
            return ClusterError(message)
        return self.lost(worker, message)

    def lost(self, process: str, message: str) -> WorkerLostError:
        """Return the error of a process that new processes can replace."""
        return WorkerLostError(process, self.cause, message, by_chance=self.by_chance, out_of_memory=self.out_of_memory)

    @property
    def by_chance(self) -> bool:
        """Whether the same end can occur twice in one step by chance, because its origin may be another process."""
        return self.code in _FROM_OUTSIDE

    @property
    def rank(self) -> int:
        """Sort key of exits noticed at the same time: fatal signals first (likely causes), ClusterErrors last."""
        if self.code < 0:
            return 0
        return 2 if self.code == ClusterError.exit_code else 1


class WorkerProcess:
    """One started process, its pidfd and its log."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str],
        tasks: Sequence[str] = (),
        *,
        is_spare: bool = False,
    ) -> None:
        """Start the process. Raises ResourceError if it cannot be started or its log cannot be opened.

        tasks: names of the workers that the process, such as ``srun``, starts on other hosts, by their task numbers.
        is_spare: whether the process waits for :meth:`take_over`.
        """
        self.name = name
        self.tasks = tasks
        self.log_path = log_path
        self.exit: Exit | None = None
        self._started, self._kills = time.monotonic(), oom_kills()
        try:
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            with open(log, "ab", buffering=0) as log_file:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE if is_spare else subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    start_new_session=True,
                )
        except OSError as error:
            raise ResourceError(
                f"cannot start {name} ({argv[0]}), log {log_path}: {error.filename}: {error.strerror}"
            ) from error
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError as error:
            self._process.kill()
            self._process.wait(_KILL_S)
            message = f"no pidfd for {name}: {error.strerror}; Linux 5.3 or newer is needed"
            raise ResourceError(message) from error

    @property
    def pid(self) -> int:
        """The process id, which is also the id of the process group."""
        return self._process.pid

    def fileno(self) -> int:
        """Return the pidfd, which becomes readable when the process dies."""
        return self._pidfd

    def take_over(self, name: str, log_path: Path) -> None:
        """Make a spare process read its ticket and join the run as ``name``, with another log."""
        self.name, self.log_path = name, log_path
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the end of the process is noticed like that of any worker
            self._process.stdin.write(f"{log_path}\n".encode())
            self._process.stdin.close()

    def poll(self) -> Exit | None:
        """If the process has ended, kill its child processes and return its ``Exit``; return None while it runs."""
        if self.exit is None:
            # WNOWAIT does not reap the process, so that its process group id cannot be reused before killpg.
            state = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if state is not None:
                os.killpg(self.pid, signal.SIGKILL)
                self.exit = Exit.after(self._process.wait(_KILL_S), self._started, self._kills)
        return self.exit

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped by a signal such as SIGSTOP."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        return status.rpartition(")")[2].split()[:1] == ["T"]

    def send_signal(self, signum: signal.Signals) -> None:
        """Send a signal to the process, if it still lives."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, signum)

    def kill(self) -> None:
        """Send SIGKILL to the process and its child processes."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)

    def dump_stack(self) -> None:
        """Make the worker write the stacks of its threads into its log, and wait for at most ``_STACK_S`` seconds.

        A process that has not called :func:`dump_stacks_on_signal` is killed by the signal.
        """
        self.send_signal(STACK_SIGNAL)
        _wait_for_any([self], _STACK_S)

    def report(self) -> str:
        """Return a text with the name of the process, how the process ended, and the last lines of its log."""
        lines = tail(self.log_path)
        ending = "\n".join(["Last lines of its log:", *(f"  | {line}" for line in lines)])
        return (
            f"{self.name} (pid {self.pid}) {self.exit or 'is still running'}. "
            f"{ending if lines else 'Its log is empty.'}\nFull log: {self.log_path}"
        )

    def failed_task(self) -> tuple[str, str, str]:
        """Return the first worker whose end is reported in the log of this process, its host, and how it ended.

        Without such a report, returns the name of this process, "" and how it ended.
        """
        if self.tasks:
            for line in tail(self.log_path, _TASK_LINES):
                found = _TASK_ENDED.match(line)
                if found is not None and int(found[2]) < len(self.tasks):
                    return self.tasks[int(found[2])], found[1], found[3][:1].lower() + found[3][1:]
        return self.name, "", self.exit.cause if self.exit else ""

    def lost(self, later: Sequence[str]) -> ClusterError:
        """Return the error that the end of this process causes. later: sentences about processes that ended later."""
        assert self.exit is not None
        worker, host, cause = self.failed_task()
        if not host:
            return self.exit.error(self.name, "\n".join([self.report(), *later]))
        text = "\n".join([f"{worker} on {host}: {cause}", self.report(), *later])
        return WorkerLostError(worker, cause, text, by_chance=False)

    def close(self) -> None:
        """Close the pidfd of a process that has ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class Supervisor:
    """All workers of a run. A context manager that ends all processes on exit.

    spares: name -> process that waits to take the place of a worker. Nothing depends on a spare process that ends.

    Use a supervisor in one thread only. This thread must live as long as the workers, because the kernel sends the
    signal of :func:`die_with_parent` when the *thread* that started a process ends.
    """

    def __init__(self, grace_s: float = 2.0) -> None:
        """``grace_s``: seconds between SIGTERM and SIGKILL on exit."""
        self.workers: dict[str, WorkerProcess] = {}
        self.spares: dict[str, WorkerProcess] = {}
        self._grace_s = grace_s
        self._exited: list[WorkerProcess] = []
        self._leaving = False

    def start(
        self,
        name: str,
        argv: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str],
        tasks: Sequence[str] = (),
    ) -> WorkerProcess:
        """Start and watch a process. environment: the complete environment, including :func:`thread_budget`.

        tasks: see :class:`WorkerProcess`.
        """
        if name in self.workers:
            raise ValueError(f"{name} is already started")
        worker = self.workers[name] = WorkerProcess(name, argv, log_path, environment, tasks)
        return worker

    def start_spare(self, name: str, argv: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> None:
        """Start a process that waits until it takes the place of a worker."""
        self.spares[name] = WorkerProcess(name, argv, log_path, environment, is_spare=True)

    def take_spare(self, worker: str) -> str | None:
        """Watch a spare process that runs as ``worker`` from now on, and return its former name; None if there is none.

        The caller then writes its ticket and calls its :meth:`WorkerProcess.take_over`.
        """
        while self.spares:
            name, process = next(iter(self.spares.items()))
            del self.spares[name]
            if process.poll() is None and not process.is_stopped:
                self.workers[worker] = process
                return name
            process.kill()
            _wait_for_any([process], _KILL_S)
            process.poll()
            process.close()
        return None

    @property
    def report_s(self) -> float:
        """Longest time in seconds within which the end of a worker is noticed here."""
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
        """Kill a process, wait for its end and forget it, so that another one can be started under its name.

        Raises ClusterError if the process survives SIGKILL.
        """
        worker = self.workers[name]
        worker.kill()
        if not _wait_for_any([worker], _KILL_S):
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
        """Whether a signal has killed a worker, so that no report of another worker can name another cause."""
        return any(worker.exit is not None and worker.exit.code < 0 for worker in self._failed_workers())

    def failure(self) -> ClusterError | None:
        """Return the ``Exit.error`` of the first worker that has died unexpectedly, the likely cause; None if none has.

        The text of the error also names the workers that died later.
        """
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
            if not _wait_for_any(living, deadline - time.monotonic()):
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
            if not self.wait_for_exit(_KILL_S):
                raise _survivor_of_sigkill(self._update())

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        for spare in self.spares.values():
            spare.kill()
        self.terminate_all(self._grace_s)
        for spare in self.spares.values():
            _wait_for_any([spare], _KILL_S)
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
    return ClusterError(f"{names} still running {_KILL_S:g} s after SIGKILL: stuck in the kernel")


def _wait_for_any(workers: Sequence[WorkerProcess], timeout_s: float) -> bool:
    """Wait until one of the processes dies; return whether one died within the time."""
    poller = select.poll()
    for worker in workers:
        poller.register(worker, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout_s) * 1000))


def die_with_parent(parent: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Make the kernel send ``signum`` to this process when its parent dies. Called in a worker or a watched master.

    ``parent`` is the parent's process id from the command line. Raises ClusterError if the parent has already ended,
    because the kernel then sends no signal.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        raise ResourceError(f"cannot set the parent-death signal: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        raise ClusterError(f"the process that started this one (pid {parent}) has ended; this process exits too")


def dump_stacks_on_signal() -> None:
    """Make ``STACK_SIGNAL`` write the stacks of all threads, even if stuck, to standard error. Called in a worker."""
    faulthandler.register(STACK_SIGNAL, all_threads=True)
