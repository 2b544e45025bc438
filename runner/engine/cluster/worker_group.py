"""The worker processes of a session, and the messages between the master and the workers."""

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from runner.engine.cluster.processes import Supervisor, thread_budget, worker_argv
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.endpoint import Endpoint, Identity, Limits, Received
from runner.engine.cluster.transport.heartbeat import HeartbeatMonitor
from runner.engine.cluster.transport.private_directory import inbox_address, private_directory, write_token
from runner.engine.cluster.transport.zmq_endpoint import ZmqEndpoint
from runner.engine.cluster.transport.zmq_sockets import open_context
from runner.errors import ClusterError, Interrupted, RunnerError
from runner.system.text import printable, printable_lines

SPARE_MESSAGES = 256
"""Number of messages of one peer that an inbox can queue; a worker's inbox can also queue all messages of a step."""

_CHECK_S = 0.5
"""Seconds between two checks of all workers, however many messages arrive."""

_DRAIN_S = 0.2
"""Longest time in seconds for which a check reads messages before it examines processes and heartbeats."""

_FINAL_ERROR_S = 0.2
_JOIN_S = 60.0
_BYE_S = 10.0
_EXIT_S = 5.0
_SEND_S = 1.0
_MOST_LINES = 40
_MOST_COLUMNS = 1000

Answer = TypeVar("Answer", bound=messages.Message)


@contextmanager
def start_workers(
    workers: Sequence[str],
    identity: Identity,
    setup: bytes,
    *,
    logs: Path,
    threads: int,
    queued_messages: int,
    monitor: HeartbeatMonitor,
    options: Sequence[str] = (),
) -> "Iterator[WorkerGroup]":
    """Start worker processes and set them up; on exit, end all processes and free the shared memory.

    workers: names of all processes, including parameter servers. identity: the master's identity. setup: the setup
    document. logs: folder for the workers' logs. threads: threads per worker for computing. queued_messages: how many
    messages one worker may send to another before the receiver reads. monitor: checks heartbeats. options: additional
    command-line options of the workers, without secrets.

    Raises ResourceError if a process cannot be started, and the errors of :meth:`WorkerGroup.gather`.
    """
    servers = sum(messages.split_name(worker)[0] == messages.SERVER_ROLE for worker in workers)
    peers = len(workers) - servers
    limits = Limits(peers, servers, queued_messages=SPARE_MESSAGES, send_timeout_s=_SEND_S)
    with (
        private_directory() as directory,
        open_context(3 * len(workers) + 4) as context,
        ZmqEndpoint(context, identity, address := inbox_address(directory, messages.MASTER), limits) as endpoint,
        Supervisor() as supervisor,
    ):
        group = WorkerGroup(workers, directory, endpoint, supervisor, monitor)
        for worker in workers:
            argv = [
                *worker_argv(address, worker, write_token(directory, worker, identity.token)),
                *("--run", identity.run, "--epoch", str(identity.epoch)),
                *("--peers", str(peers), "--servers", str(servers), "--queued-messages", str(queued_messages)),
                *options,
            ]
            monitor.watch(worker, time.monotonic())
            supervisor.start(worker, argv, logs / f"{worker}.log", {**os.environ, **thread_budget(threads)})
        endpoint.wake_on(supervisor.pidfds)
        group.set_up(setup)
        yield group
        group.shut_down()


@dataclass
class WorkerGroup:
    """Started workers, addressed by name. Created by :func:`start_workers`.

    directory: private directory of sockets and arenas. clock: the clock that ``endpoint`` and ``monitor`` use.
    """

    workers: Sequence[str]
    directory: Path
    endpoint: Endpoint
    supervisor: Supervisor
    monitor: HeartbeatMonitor
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._checked_at = self._resumed_at = self.clock()
        self._next_check = self._checked_at + _CHECK_S
        self._unread: deque[Received] = deque()
        self._failed = False

    def send(self, worker: str, message: messages.Message, *documents: bytes) -> None:
        """Send a message. If the worker has ended, raises the error that ended the worker.

        Raises ClusterError after any earlier failure, because the state of the workers is then unknown.
        """
        if self._failed:
            raise ClusterError(f"{message.kind!r} was not sent to {worker}: after an error, start a new session")
        with self._mark_failure():
            try:
                self.endpoint.send(worker, message, documents)
            except ClusterError as error:
                raise self._root_cause(error) from None

    def gather(
        self,
        workers: Collection[str],
        kind: type[Answer],
        accept: Callable[[Answer], bool] = lambda answer: True,
        limit_s: float | None = None,
    ) -> dict[str, Answer]:
        """Read until each worker has sent a ``kind`` message that ``accept`` accepts; return worker -> message.

        Raises the error that a worker reports; ClusterError if a worker dies, is silent or stuck, or after ``limit_s``.
        """
        with self._mark_failure():
            missing = set(workers)
            answers: dict[str, Answer] = {}
            incoming = self._answers(missing, (kind,), limit_s)
            while missing:
                worker, answer, _ = next(incoming)
                if worker in missing and accept(answer):
                    answers[worker] = answer
                    missing.remove(worker)
            return answers

    def next(self, *kinds: type[Answer]) -> tuple[str, Answer, Sequence[memoryview]]:
        """Read messages until one of ``kinds`` arrives; return its sender, the message and its frames.

        Raises the errors of :meth:`gather`.
        """
        with self._mark_failure():
            return next(self._answers(self.workers, kinds, None))

    def set_up(self, document: bytes) -> None:
        """Wait for every worker's hello, answer it, and send the setup document."""
        self.gather(self.workers, messages.Hello, limit_s=_JOIN_S)
        for worker in self.workers:
            self.endpoint.connect(worker, inbox_address(self.directory, worker))
            self.send(worker, messages.Welcome())
        # From now on, all workers are listening, so that plans can make workers connect to each other.
        for worker in self.workers:
            self.send(worker, messages.Setup(), document)

    def shut_down(self) -> None:
        """Send shutdown to every worker and wait until all exit; the supervisor ends workers that do not exit in time.

        After a failure no shutdown is sent, because a worker that exited during a step would make other workers fail.
        """
        if self._failed:
            return
        for worker in self.workers:
            self.send(worker, messages.Shutdown())
            self.supervisor.expect_exit(worker)
            self.monitor.forget(worker)
        self.gather(self.workers, messages.Bye, limit_s=_BYE_S)
        self.supervisor.wait_for_exit(_EXIT_S)

    @contextmanager
    def _mark_failure(self) -> Iterator[None]:
        """Mark the group as failed after any exception, because workers may be in the middle of a step."""
        try:
            yield
        except BaseException:
            self._failed = True
            raise

    def _answers(
        self, missing: Collection[str], kinds: tuple[type[Answer], ...], limit_s: float | None
    ) -> Iterator[tuple[str, Answer, Sequence[memoryview]]]:
        """Yield the messages of ``kinds`` as they arrive. missing: awaited workers; the caller may change the set."""
        begun = self.clock()
        while True:
            if self.clock() >= self._next_check:
                self._check_workers()
            now = self.clock()
            if limit_s is not None and not self._unread and now > max(begun, self._resumed_at) + limit_s:
                late = sorted(missing)
                logs = ", ".join(str(self.supervisor.workers[worker].log_path) for worker in late)
                raise ClusterError(
                    f"no {kinds[0].kind!r} from {', '.join(late)} within {limit_s:g} s; see their logs: {logs}"
                )
            received = self._unread.popleft() if self._unread else self._receive(max(0.0, self._next_check - now))
            if received is None:
                self._next_check = now  # Check now: the next check is due, or a process has died.
            elif isinstance(received.message, kinds):
                yield received.source, received.message, received.frames

    def _receive(self, timeout_s: float) -> Received | None:
        """Return the next message, or None if none arrives in time. Raises the error of a worker that has failed."""
        received = self.endpoint.receive(timeout_s)
        if received is not None and (error := self._handle_report(received, self.clock())) is not None:
            raise self._root_cause(error, received.source)
        return received

    def _check_workers(self) -> None:
        """Raise if a worker has died, is silent or is stuck.

        First reads and keeps the messages that have arrived, because they may contain heartbeats and the error that
        ended a worker.
        """
        now = self.clock()
        if now - self._checked_at > self.monitor.gap_s:
            # The master was stopped or busy. Heartbeats sent meanwhile may still be on the way.
            self.monitor.restart(now)
            self._resumed_at = now
        self._checked_at = now
        while self.clock() <= now + _DRAIN_S and (received := self._receive(0.0)) is not None:
            if not isinstance(received.message, messages.Heartbeat):
                self._unread.append(received)
        try:
            self.supervisor.check()
        except ClusterError as death:
            raise self._root_cause(death) from None
        # Pass the time read above: if the master was stopped since then, the next check notices the gap.
        if verdicts := self.monitor.tick(now):
            process = self.supervisor.workers[verdicts[0].worker]
            process.dump_stack()
            raise ClusterError(
                f"{verdicts[0]}; the stacks of its threads, unless the process is stopped, are in {process.log_path}"
            )
        self._next_check = self.clock() + _CHECK_S

    def _root_cause(self, error: RunnerError, reporter: str = "") -> RunnerError:
        """Return the cause of ``error``, which may be a consequence of another worker's failure.

        The cause is the first error other than ClusterError that a worker sends within a short time; otherwise the
        death of a worker that died before ``reporter``, the sender of ``error``; otherwise ``error`` itself.
        """
        if not isinstance(error, ClusterError):
            return error
        deadline = self.clock() + _FINAL_ERROR_S
        while (left := deadline - self.clock()) > 0 and (received := self.endpoint.receive(left)) is not None:
            error_sent = self._handle_report(received, self.clock())
            if error_sent is not None and not isinstance(error_sent, ClusterError):
                return error_sent
        if self.supervisor.first_failed() == reporter:
            return error
        try:
            self.supervisor.check()
        except ClusterError as death:
            return death
        return error

    def _handle_report(self, received: Received, now: float) -> RunnerError | None:
        """Handle a heartbeat; return the error of a worker that reports a failure."""
        match received.message:
            case messages.Heartbeat(section=section, step=step):
                self.monitor.heartbeat(messages.process_of_heartbeat(received.source), section, step, now)
            case messages.Failed() as failed:
                return _reported_error(received.source, failed, self.supervisor.workers[received.source].log_path)
        return None


_CLASSES: Mapping[str, type[RunnerError]] = {
    kind.__name__: kind for kind in RunnerError.__subclasses__() if kind is not Interrupted
}


def _reported_error(worker: str, failed: messages.Failed, log_path: Path) -> RunnerError:
    """Return a worker's error in its original class if runner defines the class, otherwise as a RunnerError."""
    text = "\n".join(printable_lines(failed.text, lines=_MOST_LINES, width=_MOST_COLUMNS))
    if failed.error in _CLASSES:
        return _CLASSES[failed.error](f"{worker}: {text}")
    return RunnerError(f"{worker}: {printable(failed.error)}: {text}\nThe traceback is in its log: {log_path}")
