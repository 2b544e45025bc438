"""Worker processes: started, watched and ended by the master; and what a worker does to die with it.

Workers are started by ``subprocess`` (never by a bare fork: threads of ZeroMQ and OpenMP do not survive
one), each in a session of its own, so that Ctrl-C at the terminal reaches the master alone. Each has a
pidfd, which becomes readable the moment the process is dead; it waits in the same poll as the inbox. Linux
only.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from runner.engine.transport.names import split_name
from runner.engine.transport.text import printable_lines
from runner.errors import ClusterError, Interrupted, ResourceError, RunnerError

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""What numerical libraries read, once, when they are loaded."""

STACK_SIGNAL = signal.SIGUSR1
TAIL_LINES = 20

_TAIL_BYTES = 16 * 2**10
_STACK_S = 0.5
_KILL_S = 5.0
_PR_SET_PDEATHSIG = 1
_SIGNAL_NAMES = {signum.value: signum.name for signum in signal.Signals}
_CLASS_OF_CODE = {error.exit_code: error.__name__ for error in RunnerError.__subclasses__() if error is not Interrupted}


def thread_budget(threads: int) -> dict[str, str]:
    """Return the environment variables that hold every numerical library to ``threads`` threads."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def worker_argv(address: str, name: str, token_file: Path) -> list[str]:
    """Return the command line of the process ``name``; ``address`` is the master's inbox. No secret is in it."""
    role, index = split_name(name)
    return [
        *(sys.executable, "-m", "runner", "worker"),
        *("--address", address, "--role", role, "--index", str(index)),
        *("--token-file", str(token_file), "--parent", str(os.getpid())),
    ]


def tail(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a log, looking at its last 16 KiB only, escaped and cut for a terminal."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            content = file.read(_TAIL_BYTES)
    except OSError as error:
        return [f"({path} cannot be read: {error.strerror})"]
    return printable_lines(content.decode("utf-8", "replace"), lines)


@dataclass(frozen=True)
class Exit:
    """How a process ended: its exit code, or minus the signal that killed it, and after how long."""

    code: int
    after_s: float

    def __str__(self) -> str:
        if self.code < 0:
            cause = " (often for lack of memory: see dmesg)" if self.code == -signal.SIGKILL else ""
            name = _SIGNAL_NAMES.get(-self.code, f"signal {-self.code}")
            return f"was killed by {name}{cause} after {self.after_s:.1f} s"
        meaning = f" ({_CLASS_OF_CODE[self.code]})" if self.code in _CLASS_OF_CODE else ""
        return f"exited with code {self.code}{meaning} after {self.after_s:.1f} s"

    @property
    def rank(self) -> int:
        """Order among exits noticed in one look: a crash is a cause, a ClusterError a consequence."""
        if self.code < 0:
            return 0
        return 2 if self.code == ClusterError.exit_code else 1


class WorkerProcess:
    """One started process, its pidfd and its log."""

    def __init__(self, name: str, argv: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> None:
        """Start it. Raises ResourceError when it cannot be started or its log not be written."""
        self.name = name
        self.log_path = log_path
        self.exit: Exit | None = None
        self._started = time.monotonic()
        try:
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            with open(log, "ab", buffering=0) as log_file:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
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
        """Process id, which is also the id of its process group."""
        return self._process.pid

    def fileno(self) -> int:
        """The pidfd: readable from the moment the process is dead."""
        return self._pidfd

    def look(self) -> Exit | None:
        """Return how the process ended, None while it lives. What it has started itself ends with it."""
        if self.exit is None:
            # Looked at without reaping first: as long as the leader is not reaped, its group cannot be
            # another's.
            state = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if state is not None:
                os.killpg(self.pid, signal.SIGKILL)
                self.exit = Exit(self._process.wait(_KILL_S), time.monotonic() - self._started)
        return self.exit

    def send_signal(self, signum: signal.Signals) -> None:
        """Send a signal to the process, if it still lives."""
        if self.look() is None:
            signal.pidfd_send_signal(self._pidfd, signum)

    def kill(self) -> None:
        """Send SIGKILL to the process and all that it has started."""
        if self.look() is None:
            os.killpg(self.pid, signal.SIGKILL)

    def dump_stack(self) -> None:
        """Have the worker write the stacks of its threads into its log, and give it a moment for that.

        A process that has not called :func:`dump_stacks_when_asked` dies of it instead.
        """
        self.send_signal(STACK_SIGNAL)
        _wait_for_any([self], _STACK_S)

    def report(self) -> str:
        """Return the message of a death: who, how, and the last lines of the log."""
        lines = tail(self.log_path)
        said = "\n".join(["Last lines of its log:", *(f"  | {line}" for line in lines)])
        return (
            f"{self.name} (pid {self.pid}) {self.exit or 'still runs'}. "
            f"{said if lines else 'Its log is empty.'}\nThe whole log: {self.log_path}"
        )

    def close(self) -> None:
        """Give up the pidfd of a process that has ended."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class Supervisor:
    """All workers of a run. A context manager: leaving it leaves no process.

    Used by one thread, the one that starts the workers, and that thread must live as long as they do: the
    kernel sends the signal of :func:`die_with_parent` when the *thread* that started a process ends.
    """

    def __init__(self, grace_s: float = 2.0) -> None:
        """``grace_s``: how long workers have after SIGTERM when the context is left."""
        self.workers: dict[str, WorkerProcess] = {}
        self._grace_s = grace_s
        self._exited: list[WorkerProcess] = []
        self._leaving: set[str] = set()

    def start(self, name: str, argv: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> WorkerProcess:
        """Start and watch a process. ``environment`` is all it gets; add :func:`thread_budget` to it."""
        if name in self.workers:
            raise ValueError(f"{name} has been started already")
        worker = self.workers[name] = WorkerProcess(name, argv, log_path, environment)
        return worker

    @property
    def pidfds(self) -> list[int]:
        """One descriptor per worker, for a poll: readable from the moment that worker is dead."""
        return [worker.fileno() for worker in self.workers.values()]

    def expect_exit(self, name: str) -> None:
        """Note that a worker has said bye: that it then exits with code 0 is no failure."""
        self._leaving.add(name)

    def check(self) -> None:
        """Raise ClusterError if a worker has died: the first by time is the cause, the others follow it."""
        failed = self._failed()
        if failed:
            others = [f"After it, {worker.name} {worker.exit}." for worker in failed[1:]]
            raise ClusterError("\n".join([failed[0].report(), *others]))

    def first_dead(self) -> str:
        """Name of the worker that died before the others; "" while none has."""
        return next((worker.name for worker in self._failed()), "")

    def _failed(self) -> list[WorkerProcess]:
        """The workers that have died, in the order of :meth:`check`."""
        self._look()
        return [worker for worker in self._exited if not self._is_expected(worker)]

    def wait_for_exit(self, timeout_s: float) -> bool:
        """Wait until all workers have ended; return whether they have within ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        while living := self._look():
            if not _wait_for_any(living, deadline - time.monotonic()):
                return False
        return True

    def terminate_all(self, grace_s: float) -> None:
        """End all workers: SIGTERM, after ``grace_s`` seconds a stack dump and SIGKILL.

        Raises ClusterError when one survives even that, which only an uninterruptible system call can.
        """
        for worker in self._look():
            worker.send_signal(signal.SIGTERM)
        if not self.wait_for_exit(grace_s):
            for worker in self._look():
                worker.dump_stack()
                worker.kill()
            if not self.wait_for_exit(_KILL_S):
                names = ", ".join(f"{worker.name} (pid {worker.pid})" for worker in self._look())
                raise ClusterError(f"{names} survived SIGKILL by {_KILL_S:g} s: stuck in the kernel")

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.terminate_all(self._grace_s)
        for worker in self.workers.values():
            worker.close()

    def _look(self) -> list[WorkerProcess]:
        """Note who has ended since the last look, in the likeliest order, and return who lives."""
        ended: list[tuple[int, str]] = []
        living: list[WorkerProcess] = []
        for worker in self.workers.values():
            if worker in self._exited:
                continue
            if exit_ := worker.look():
                ended.append((exit_.rank, worker.name))
            else:
                living.append(worker)
        self._exited += [self.workers[name] for _, name in sorted(ended)]
        return living

    def _is_expected(self, worker: WorkerProcess) -> bool:
        return worker.name in self._leaving and worker.exit is not None and worker.exit.code == 0


def _wait_for_any(workers: Sequence[WorkerProcess], timeout_s: float) -> bool:
    """Wait until one of the processes is dead; return whether one was within the time."""
    poller = select.poll()
    for worker in workers:
        poller.register(worker, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout_s) * 1000))


def die_with_parent(parent: int) -> None:
    """In a worker: have the kernel kill this process when its parent dies, however that happens.

    ``parent`` is the process id the worker was told. Raises ClusterError when the parent is gone already,
    for then no signal will come.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise ResourceError(f"no parent-death signal: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        raise ClusterError(f"the master (pid {parent}) was gone before this worker began; nobody needs it")


def dump_stacks_when_asked() -> None:
    """In a worker: on ``STACK_SIGNAL`` write the stacks of all threads to standard error, even when stuck."""
    faulthandler.register(STACK_SIGNAL, all_threads=True)
