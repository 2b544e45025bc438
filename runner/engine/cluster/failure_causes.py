"""The causes of failures: errors that workers report, ends of processes, silent or stuck workers, missing messages."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.engine.cluster.joining import Joined
from runner.engine.cluster.process_exit import reported_error
from runner.engine.cluster.spares import Spares
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.transport.heartbeat import HeartbeatMonitor, Reason
from runner.errors import ClusterError, NotStartedAgainError, RunnerError, WorkerLostError

CHECK_S = 0.1  # seconds between two checks of all workers, however many messages arrive
_LAST_S = 0.05  # longest time in seconds for which messages are read after a signal has killed a worker

Read = Callable[[float], tuple[Received | None, RunnerError | None]]
"""Seconds to wait -> the next message, or None if none arrives, and the error that the message reports, or None."""


@dataclass(frozen=True)
class FailureCauses:
    """The causes of failures in a worker group. For the attributes without a description, see ``WorkerGroup``.

    lost: workers that are silent or stuck, or that have reported an error after which they leave the run.
    """

    joined: Joined
    supervisor: Supervisor
    monitor: HeartbeatMonitor
    spares: Spares
    logs: Path
    clock: Callable[[], float]
    lost: set[str] = field(default_factory=set)

    def log_of(self, worker: str) -> Path:
        """Return the path of a worker's log."""
        return self.logs / f"{worker}.log"

    def reported(self, worker: str, failed: messages.Failed) -> RunnerError:
        """Return the error that a worker reports."""
        if failed.error != ClusterError.__name__:  # after a ClusterError, the worker still waits for a recovery
            self.lost.add(worker)
        return reported_error(self.joined.named(worker), failed, self.log_of(worker))

    def silent_or_stuck(self, now: float) -> WorkerLostError | None:
        """Return the error for the first worker that is lost according to its heartbeats; None if there is none."""
        verdicts = self.spares.without_lost(self.monitor.tick(now, self.supervisor.is_stopped))
        if not verdicts:
            return None
        self.lost.update(verdict.worker for verdict in verdicts)
        name, reason = verdicts[0].worker, verdicts[0].reason
        by_chance = reason is not Reason.STUCK
        text = self.joined.describe(verdicts[0], self.log_of(name))
        return WorkerLostError(name, f"is {reason}", text, by_chance=by_chance)

    def unreachable(self, worker: str, text: str, read: Read) -> RunnerError:
        """Return the error for a worker to which no message can be sent, or its cause; see :meth:`root_cause`."""
        return self.root_cause(WorkerLostError(worker, "cannot be reached", text, by_chance=True), read)

    def root_cause(self, error: RunnerError, read: Read, reporter: str = "") -> RunnerError:
        """Return the cause of ``error``, which may be a consequence of another worker's failure.

        The cause is the first error that a worker sends within a short time before it leaves the run; otherwise the
        death of a worker that died before ``reporter``, the sender of ``error``; otherwise ``error`` itself.
        Workers may lose their connections to a host before the master counts the host as silent. If workers run on
        other hosts, this method therefore waits for such a silence, which is then the cause.
        """
        if reporter in self.lost:
            return error
        begun = self.clock()
        silent_s = self.joined.launcher.silence_s + CHECK_S if self.joined.unwatched else 0.0
        limit_s = max(self.supervisor.report_s, silent_s)
        while (waited := self.clock() - begun) < (_LAST_S if self.supervisor.has_crashed else limit_s):
            received, error_sent = read(_LAST_S)
            if received is None:
                if self.supervisor.has_crashed or (waited > self.supervisor.report_s and self.supervisor.failure()):
                    break
                if silent_s and (lost := self.silent_or_stuck(self.clock())) is not None:
                    return lost
            elif error_sent is not None and received.source in self.lost:
                return error_sent
        if self.supervisor.first_failed() == reporter:
            return error
        return self.supervisor.failure() or error

    def late(
        self, late: Sequence[str], kind: str, limit_s: float, absent: Collection[str], *, goes_on: bool = False
    ) -> ClusterError:
        """Return the error for workers that have not sent a message of ``kind`` within ``limit_s`` seconds.

        absent: lost workers without complete replacements. goes_on: whether the run does not wait for the message.
        """
        joining, watched = kind == messages.Hello.kind, late[0] in self.supervisor.workers
        happened = "did not join the run" if joining else f"sent no message {kind!r}"
        hint = f"see {', '.join(str(self.log_of(worker)) for worker in late)}"
        if joining and not watched:  # the process has not written a log
            hint = "check that it was started and that its host can reach this one (limit: cluster.launcher.join_s)"
        text = f"{', '.join(map(self.joined.named, late))} {happened} within {limit_s:g} s; {hint}"
        if not absent:
            return ClusterError(text)
        if goes_on or watched:
            return WorkerLostError(late[0], "did not join the run again", text, by_chance=True)
        remaining = messages.count_role(set(self.joined.workers).difference(absent), messages.WORKER_ROLE)
        return NotStartedAgainError(text, remaining)
