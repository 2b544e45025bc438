"""The end of a process: its exit code or signal, whether it was killed for lack of memory, or its reported error."""

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from runner.engine.cluster.transport.messages import Failed
from runner.errors import ClusterError, Interrupted, RunnerError, WorkerLostError
from runner.system.text import printable, printable_lines

_VMSTAT = Path("/proc/vmstat")
_SIGNAL_NAMES = {signum.value: signum.name for signum in signal.Signals}
_BY_CHANCE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, ClusterError.exit_code)
_CLASSES = {error.__name__: error for error in RunnerError.__subclasses__() if error is not Interrupted}
_CLASS_OF_CODE = {error.exit_code: name for name, error in _CLASSES.items()}
_MOST_LINES = 40
_MOST_COLUMNS = 1000


def oom_kills(path: Path = _VMSTAT) -> int | None:
    """Return the number of processes of this host that the kernel has killed for lack of memory; None if unknown.

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

    code: exit code, or the negative number of the signal. after_s: seconds from the start of the process to its end.
    oom_kills: number of processes of this host that the kernel killed for lack of memory in this time, or None.
    """

    code: int
    after_s: float
    oom_kills: int | None = None

    @classmethod
    def after(cls, code: int, begun: float, kills: int | None) -> "Exit":
        """Return the end of a process that ends now. begun: time of its start. kills: ``oom_kills()`` at its start."""
        now = oom_kills()
        return cls(code, time.monotonic() - begun, None if now is None or kills is None else now - kills)

    def __str__(self) -> str:
        unknown = self.code == -signal.SIGKILL and self.oom_kills is None
        return f"{self.cause}{' (often for lack of memory: see dmesg)' if unknown else ''} after {self.after_s:.1f} s"

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel probably killed this process for lack of memory; ``oom_kills`` names no process."""
        return self.code == -signal.SIGKILL and bool(self.oom_kills)

    @property
    def cause(self) -> str:
        """The code or signal as a text, without the time, so that equal causes give equal texts."""
        if self.code < 0:
            why = ", probably for lack of memory," if self.out_of_memory else ""
            return f"was killed by {_SIGNAL_NAMES.get(-self.code, f'signal {-self.code}')}{why}"
        meaning = f" ({_CLASS_OF_CODE[self.code]})" if self.code in _CLASS_OF_CODE else ""
        return f"exited with code {self.code}{meaning}"

    def error(self, worker: str, message: str) -> ClusterError:
        """Return the error for this end of a worker: a WorkerLostError unless a new process would fail again.

        A new process would fail again if the exit code belongs to an error class of runner other than ClusterError.
        """
        if self.code in _CLASS_OF_CODE and self.code != ClusterError.exit_code:
            return ClusterError(message)
        return self.lost(worker, message)

    def lost(self, process: str, message: str) -> WorkerLostError:
        """Return the error for this end of a process that a new process can replace."""
        return WorkerLostError(process, self.cause, message, by_chance=self.by_chance, out_of_memory=self.out_of_memory)

    @property
    def by_chance(self) -> bool:
        """Whether another process may have caused this end. Two such ends in one step may be a coincidence."""
        return self.code in _BY_CHANCE

    @property
    def rank(self) -> int:
        """Sort key of exits noticed at the same time: fatal signals first (likely causes), ClusterErrors last."""
        if self.code < 0:
            return 0
        return 2 if self.code == ClusterError.exit_code else 1


REPORTED_BY_CHANCE = {
    "lost by Ray",
    *(f"exited with exit code {code}" for code in _BY_CHANCE),
    *(f"killed by {_SIGNAL_NAMES[-code]}" for code in _BY_CHANCE if code < 0),
    *(str(signal.strsignal(-code)).lower() for code in _BY_CHANCE if code < 0),
}
"""Causes that ``srun`` or the program for Ray reports for ends by chance; see :attr:`Exit.by_chance`."""


def reported_lines(text: str) -> list[str]:
    """Return the lines of a text that a worker sent, limited in number and length, and escaped for a terminal."""
    return printable_lines(text, lines=_MOST_LINES, width=_MOST_COLUMNS)


def reported_error(worker: str, failed: Failed, log_path: Path) -> RunnerError:
    """Return a worker's error in its original class if runner defines the class, otherwise as a RunnerError."""
    sent = "\n".join(reported_lines(failed.text))
    text = f"{worker}: {sent}"
    if failed.error == ClusterError.__name__:
        return WorkerLostError(worker, "lost a connection", text, by_chance=True)
    if failed.error == KeyboardInterrupt.__name__:
        return WorkerLostError(worker, "was stopped by Ctrl-C", text, by_chance=True)
    if failed.error in _CLASSES:
        return _CLASSES[failed.error](text)
    return RunnerError(
        f"{worker}: {printable(failed.error)}: {sent}\nThe traceback is in the log of {worker}: {log_path}"
    )
