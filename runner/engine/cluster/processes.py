"""Worker processes: the master starts, watches and ends them; a worker dies when its master dies.

Workers are started by ``subprocess``, because the threads of ZeroMQ and OpenMP do not survive ``os.fork``.
Each worker starts a new POSIX session, so that Ctrl-C at the terminal reaches only the master. The master polls its
inbox together with a pidfd for each worker, which becomes readable when the worker dies. Linux only.
"""

import ctypes
import errno
import faulthandler
import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from runner.engine.cluster.process_exit import Exit, oom_kills
from runner.errors import ClusterError, ResourceError
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

SHORT_WAIT = {"GOMP_SPINCOUNT": "1000"}
"""How often a waiting thread of GNU OpenMP reads its flag before it sleeps. The default of 300,000 reads occupies a
core that other processes need."""

STACK_SIGNAL = signal.SIGUSR1

_TAIL_BYTES = 16 * 2**10  # bytes of a log that are searched for its last lines
_STACK_S = 0.5  # seconds in which a worker can write its stacks
KILL_S = 5.0  # seconds in which a killed process must end
_PR_SET_PDEATHSIG = 1
_PIDFD_REMEDIES = {errno.ENOSYS: "; Linux 5.3 or newer is needed", errno.EMFILE: "; raise `ulimit -n`"}


def thread_budget(threads: int) -> dict[str, str]:
    """Return the environment variables that limit every numerical library to ``threads`` threads."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def runner_command(module: str = "runner.__main__") -> list[str]:
    """Return the beginning of a command line that runs a module of runner from the source files of this process.

    The option -P keeps the script's folder off ``sys.path``, so that no file there is imported instead of a library.
    """
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return [sys.executable, "-P", spec.origin]


def tail(path: Path, lines: int = 20, begin: int = 0) -> list[str]:
    """Return the last lines of a log, from at most 16 KiB after its first ``begin`` bytes, escaped for a terminal."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin, size - _TAIL_BYTES))
            content = file.read(_TAIL_BYTES)
    except OSError as error:
        return [f"({path} cannot be read: {error.strerror})"]
    return printable_lines(content.decode("utf-8", "replace"), lines)


class End(Protocol):
    """The interface of the end of a worker; see the properties of :class:`WorkerProcess`, which implements it."""

    @property
    def name(self) -> str: ...
    @property
    def ending(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def has_crashed(self) -> bool: ...
    @property
    def is_regular(self) -> bool: ...
    def lost(self, later: Sequence[str]) -> ClusterError: ...


class WorkerProcess:
    """One started process, its pidfd and its log."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str],
        *,
        has_input: bool = False,
    ) -> None:
        """Start the process. Raises ResourceError if it cannot be started or its log cannot be opened.

        has_input: whether the standard input of the process is a pipe.
        """
        self.name = name
        self.log_path = log_path
        self.exit: Exit | None = None
        self._started, self._kills = time.monotonic(), oom_kills()
        try:
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            self._log_begin = os.fstat(log).st_size  # end of the output of earlier processes of this name
            with open(log, "ab", buffering=0) as log_file:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    start_new_session=True,
                )
        except OSError as error:
            raise ResourceError(f"cannot start {name}: {error.filename or argv[0]}: {error.strerror}") from error
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError as error:
            self._process.kill()
            self._process.wait(KILL_S)
            remedy = _PIDFD_REMEDIES.get(error.errno or 0, "")
            raise ResourceError(f"cannot watch {name}: pidfd_open: {error.strerror}{remedy}") from error

    @property
    def pid(self) -> int:
        """The process id, which is also the id of the process group."""
        return self._process.pid

    def fileno(self) -> int:
        """Return the pidfd, which becomes readable when the process dies."""
        return self._pidfd

    @property
    def tasks(self) -> Sequence[str]:
        """Names of the workers and spare processes of this process: its own name."""
        return [self.name]

    def take_name(self, name: str, log_path: Path) -> None:
        """Give a spare process the name and the log of a worker. Earlier kills for lack of memory are not counted."""
        self.name, self.log_path = name, log_path
        self._started, self._kills = time.monotonic(), oom_kills()
        self._log_begin = log_path.stat().st_size if log_path.exists() else 0

    def write_line(self, line: str) -> None:
        """Write a line to the standard input of the process. If the process has ended, ``poll`` reports its end."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def end_input(self) -> None:
        """Close the standard input of the process, if it is open."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def poll(self) -> Exit | None:
        """If the process has ended, kill its child processes and return its ``Exit``; return None while it runs."""
        if self.exit is None:
            # WNOWAIT does not reap the process, so that its process group id cannot be reused before killpg.
            state = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if state is not None:
                os.killpg(self.pid, signal.SIGKILL)
                self.exit = Exit.after(self._process.wait(KILL_S), self._started, self._kills)
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
        """If the process is running, send it a signal."""
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
        wait_for_any([self], _STACK_S)

    def report(self) -> str:
        """Return a text with the name of the process, how the process ended, and the last lines of its log."""
        lines = tail(self.log_path, begin=self._log_begin)
        ending = (
            "\n".join(["Last lines of its log:", *(f"  | {line}" for line in lines)]) if lines else "Its log is empty."
        )
        return f"{self.name} (pid {self.pid}) {self.exit or 'is still running'}. {ending}\nFull log: {self.log_path}"

    @property
    def ends(self) -> "Sequence[End]":
        """The ends of the workers of this process: this process itself, if it has ended."""
        return [self] if self.poll() is not None else []

    @property
    def ending(self) -> str:
        """How and when the process ended."""
        return str(self.exit)

    @property
    def rank(self) -> int:
        """See :attr:`Exit.rank`."""
        return self.exit.rank if self.exit else 0

    @property
    def has_crashed(self) -> bool:
        """Whether a signal has killed the process."""
        return self.exit is not None and self.exit.code < 0

    @property
    def is_regular(self) -> bool:
        """Whether the process has ended with exit code 0."""
        return self.exit is not None and self.exit.code == 0

    def lost(self, later: Sequence[str]) -> ClusterError:
        """Return the error that the end of this process causes. later: sentences about processes that ended later."""
        assert self.exit is not None
        return self.exit.error(self.name, "\n".join([self.report(), *later]))

    def close(self) -> None:
        """Close the pidfd of a process that has ended."""
        self.end_input()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def wait_for_any(workers: Sequence[WorkerProcess | int], timeout_s: float) -> bool:
    """Wait at most ``timeout_s`` seconds until one of the processes (or pidfds) dies; return whether one has died."""
    poller = select.poll()
    for worker in workers:
        poller.register(worker, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout_s) * 1000))


def kill_user_of(directory: Path, pid: int) -> None:
    """Kill process ``pid`` if it maps files of ``directory``, even deleted ones, and wait for its end."""
    with suppress(OSError):  # the process has ended
        pidfd = os.pidfd_open(pid)
        try:
            if f"{directory}/" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace"):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                wait_for_any([pidfd], KILL_S)
        finally:
            os.close(pidfd)


def die_with_parent(parent: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Make the kernel send ``signum`` to this process when its parent dies. Called in a worker or a watched master.

    ``parent``: the parent's process id. Raises ClusterError if the parent has already ended: then no signal is sent.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        raise ResourceError(f"cannot set the parent-death signal: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        raise ClusterError(f"the process that started this one (pid {parent}) has ended; this process exits too")


def dump_stacks_on_signal() -> None:
    """Make ``STACK_SIGNAL`` write the stacks of all threads, even of stuck ones, to standard error."""
    faulthandler.register(STACK_SIGNAL, all_threads=True)
