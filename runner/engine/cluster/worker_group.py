"""The worker processes of a session, and the messages between the master and the workers."""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from runner.engine.cluster.arrivals import Arrivals, send_all_parts
from runner.engine.cluster.failure_causes import CHECK_S, FailureCauses
from runner.engine.cluster.joining import HOST, Joined
from runner.engine.cluster.launchers import Launcher
from runner.engine.cluster.process_exit import reported_lines
from runner.engine.cluster.processes import kill_user_of
from runner.engine.cluster.spares import Spares
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.endpoint import ClosedConnections, Endpoint, Received
from runner.engine.cluster.transport.heartbeat import HeartbeatMonitor
from runner.engine.cluster.transport.private_directory import inbox_address, inbox_path
from runner.errors import ClusterError, RunnerError

log = logging.getLogger(__name__)

_DRAIN_S = 0.2  # longest time in seconds for which a check reads messages before it examines processes and heartbeats
_BYE_S = 10.0  # time limit in seconds for the answers to Shutdown
_DISMISS_S = 2.0  # the same after an error
_EXIT_S = 5.0  # time limit in seconds for the exits of the processes after their answers

Answer = TypeVar("Answer", bound=messages.Message)


@dataclass
class WorkerGroup:
    """Started workers, addressed by name. Created by :func:`~runner.engine.cluster.starting.start_workers`.

    directory: private directory of sockets and arenas. logs: folder for the workers' logs. facts: the master's facts;
    see ``joining``. clock: the clock that ``endpoint`` and ``monitor`` use. start: starts the processes with the given
    names in an epoch; see :meth:`Launcher.start` for its last argument. ticket: see :class:`Spares`. absent: lost
    workers whose replacements cannot take part yet. rejoined: called when the replacements of all absent workers have
    joined while another message was awaited.
    """

    workers: Sequence[str]
    directory: Path
    endpoint: Endpoint
    supervisor: Supervisor
    monitor: HeartbeatMonitor
    logs: Path
    launcher: Launcher
    facts: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    start: Callable[[Collection[str], int, Mapping[str, str]], None] = lambda names, epoch, hosts: None
    ticket: Callable[[str, int], bytes] = lambda worker, epoch: b""

    def __post_init__(self) -> None:
        self._checked_at = self._resumed_at = self._replaced_at = self._failed_at = self.clock()
        self._next_check = self._checked_at + CHECK_S
        self._unread: deque[Received] = deque()
        self.absent: set[str] = set()
        self.rejoined: Callable[[], None] = lambda: None
        self.loading: set[tuple[str, str]] = set()  # (worker, plan) that was sent to a replacement and is not loaded
        self._failed = False
        self.joined = Joined(self.workers, self.facts, self.launcher, self.supervisor)
        given = (self.joined, self.directory, self.endpoint, self.supervisor, self.monitor, self.logs, self.clock)
        self.spares = Spares(*given, self.start, self.ticket)
        self._causes = FailureCauses(self.joined, self.supervisor, self.monitor, self.spares, self.logs, self.clock)
        self.arrivals = Arrivals()
        self._connections = ClosedConnections(self.endpoint)

    def send(self, worker: str, message: messages.Message, *documents: bytes) -> None:
        """Send a message. Raises WorkerLostError if it cannot be sent, or the error that ended the worker.

        Raises ClusterError after any earlier failure, because the state of the workers is then unknown.
        """
        with self._sending(worker, message.kind):
            self.endpoint.send(worker, message, documents)

    def send_tensors(
        self, worker: str, plan: str, step: int, keys: Sequence[str], memory: Callable[[str], memoryview]
    ) -> None:
        """Send the bytes of tensors. memory: key -> bytes of the tensor. Raises the errors of :meth:`send`."""
        with self._sending(worker, messages.TensorsPart.kind):
            send_all_parts(self.endpoint, worker, plan, step, keys, memory)

    @contextmanager
    def _sending(self, worker: str, kind: str) -> Iterator[None]:
        if self._failed:
            raise ClusterError(f"{kind!r} was not sent to {worker}: after an error, start a new session")
        with self._mark_failure():
            try:
                yield
            except ClusterError as error:
                raise self._causes.unreachable(worker, str(error), self._read) from None

    def gather(
        self,
        workers: Collection[str],
        kind: type[Answer],
        accept: Callable[[Answer], bool] = lambda answer: True,
        others: deque[tuple[str, Answer]] | None = None,
        limit_s: float | None = None,
    ) -> dict[str, Answer]:
        """Read until each worker has sent a ``kind`` message that ``accept`` accepts; return worker -> message.

        others: receives the other messages of this kind; None to drop them. Raises the error that a worker reports;
        WorkerLostError if a worker is lost; ClusterError after ``limit_s``.
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
                elif others is not None:
                    others.append((worker, answer))
            return answers

    def next(self, *kinds: type[Answer]) -> tuple[str, Answer, Sequence[memoryview]]:
        """Return the next message of ``kinds`` with its sender and its frames; raises the errors of :meth:`gather`."""
        with self._mark_failure():
            return next(self._answers(self.workers, kinds, None))

    def replace(self, lost: str, epoch: int) -> list[str]:
        """Kill a lost worker, start another process in its place, and make all others drop the interrupted step.

        A spare process takes the place of the worker if there is one. Also replaces every worker that has ended, is
        silent, or whose replacement is not complete. Returns the names of all replaced workers when the others are in
        the new epoch. The caller then calls :meth:`set_up`, loads the plans on the replacements and clears
        ``absent``; until then, the others can run the plans in which no absent worker takes part. Raises
        WorkerLostError if another worker is lost.
        """
        self.absent |= {lost, *self.supervisor.ended, *self._causes.lost} & set(self.workers)
        absent = sorted(self.absent)
        for worker in absent:
            self._fence(worker)
        self._failed = False
        for each in (self._unread, self.loading, self.arrivals):
            each.clear()
        with self._mark_failure():
            self.endpoint.advance(epoch, absent)
            new = [worker for worker in absent if not self.spares.take(worker, epoch, self._failed_at)]
            self.start(new, epoch, self.joined.hosts)
        self._replaced_at = self.clock()
        others = [worker for worker in self.workers if worker not in self.absent]
        for worker in others:
            self.send(worker, messages.Abandon(epoch, tuple(absent)))
        self.gather(others, messages.Abandoned)
        return absent

    @property
    def has_joined(self) -> bool:
        """Whether the replacements of all absent workers have joined the run, so that :meth:`set_up` does not wait."""
        return self.absent <= self.joined.hellos.keys()

    def _fence(self, worker: str) -> None:
        """Kill a worker of this host or give it up; remove its inbox, and forget its heartbeats and its hello."""
        self.supervisor.remove(worker)
        if worker in self.joined.sharing:
            # The supervisor does not end processes of other programs. A stopped one would later write to shared memory.
            kill_user_of(self.directory, self.joined.hellos[worker].pid)
        self.monitor.forget(worker)
        # A process that was killed leaves the file of its socket, which its replacement would not overwrite.
        inbox_path(inbox_address(self.directory, worker)).unlink(missing_ok=True)
        self.joined.remove(worker)
        self._causes.lost.discard(worker)

    def set_up(self, document: Callable[[Mapping[str, str]], bytes], workers: Sequence[str] | None = None) -> None:
        """Wait until ``workers``, by default all, have joined, and send them the setup document.

        document: returns the document for worker -> inbox address; inboxes in the private directory have no entry.
        The other workers receive the new addresses. A worker whose facts differ from the master's is refused.
        Raises ClusterError for a refused worker, unless users start workers: another process may then join. After
        ``join_s`` seconds, raises ClusterError; for replacements, WorkerLostError or NotStartedAgainError.
        """
        workers = self.workers if workers is None else workers
        with self._mark_failure():
            for worker in self.supervisor.workers.keys() & set(workers):
                self.monitor.watch(worker, self.clock())
            missing = set(workers) - self.joined.hellos.keys()
            hellos = self._answers(missing, (messages.Hello,), self.launcher.join_s)
            while missing:
                worker, hello, _ = next(hellos)
                if worker in missing and self._welcomes(worker, hello):
                    missing.remove(worker)
        addresses = {worker: hello.address for worker, hello in self.joined.hellos.items() if hello.address}
        for worker in workers:
            self.send(worker, messages.Setup(), document(addresses))
        if moved := {worker: addresses[worker] for worker in workers if worker in addresses}:
            for worker in set(self.workers) - set(workers):
                self.send(worker, messages.Moved(moved))

    def _welcomes(self, worker: str, hello: messages.Hello) -> bool:
        """Connect to a worker that may join, and send it the welcome; return False if the worker was refused."""
        if not self._admits(worker, hello):
            return False
        try:
            self.endpoint.connect(worker, hello.address or inbox_address(self.directory, worker))
        except ClusterError as error:
            raise self._causes.root_cause(error, self._read) from None
        self.joined.hellos[worker] = hello
        self.send(worker, messages.Welcome())
        if worker not in self.supervisor.workers:
            self.monitor.watch(worker, self.clock())
        return True

    def _admits(self, worker: str, hello: messages.Hello) -> bool:
        """Return whether a worker may join; if not, send it the reason."""
        reason = self.joined.refusal(worker, hello)
        if reason:
            where = f"on {hello.facts.get(HOST, 'an unknown host')} (pid {hello.pid})"
            log.warning("%s %s was refused: %s", worker, where, reason)
            self.endpoint.refuse(worker, reason)
            if self.supervisor.workers:
                raise ClusterError(f"{worker} {where} was refused: {reason}")
        return not reason

    def shut_down(self) -> None:
        """Send shutdown to every worker and wait until all exit; the supervisor ends workers that do not exit in time.

        After a failure no shutdown is sent, because a worker that exited during a step would make other workers fail.
        """
        if self._failed:
            return
        present = [worker for worker in self.workers if worker not in self.absent]
        while self.absent:
            self._fence(self.absent.pop())
        for worker in present:
            self.send(worker, messages.Shutdown())
            self.monitor.forget(worker)
        self.spares.end(messages.Shutdown())
        self.supervisor.expect_exits()
        self.gather(self.joined.senders(present), messages.Bye, limit_s=_BYE_S)
        self.supervisor.wait_for_exit(_EXIT_S)

    def dismiss(self, shutdown: messages.Shutdown) -> None:
        """After an error, send the reason to workers that the supervisor did not start; wait briefly for answers.

        The supervisor ends the workers that it started. A worker that has lost the master ends itself.
        """
        offered = [each for each in self.joined.unwatched - self._causes.lost if self.endpoint.offer(each, shutdown)]
        waiting = self.joined.senders(offered)
        self.spares.end(shutdown)
        deadline = self.clock() + _DISMISS_S
        while waiting and (left := deadline - self.clock()) > 0:
            try:
                received, _ = self._read(left)
            except RunnerError as error:
                log.warning("after the end of the run: %s", error)
                continue
            if received is not None and isinstance(received.message, messages.Bye | messages.Failed):
                waiting.discard(received.source)

    @contextmanager
    def _mark_failure(self) -> Iterator[None]:
        """Mark the group as failed after any exception, because workers may be in the middle of a step."""
        try:
            yield
        except BaseException:
            self._failed, self._failed_at = True, self.clock()
            raise

    def _answers(
        self, missing: Collection[str], kinds: tuple[type[Answer], ...], limit_s: float | None
    ) -> Iterator[tuple[str, Answer, Sequence[memoryview]]]:
        """Yield the messages of ``kinds``. missing: awaited workers, for error messages; the caller may change it."""
        begun = self.clock()
        while True:
            if self.clock() >= self._next_check:
                self._check_workers(missing if messages.Hello in kinds else ())
                if messages.Bye not in kinds:  # a worker closes its connections after Shutdown
                    self._check_connections()
            now = self.clock()
            if limit_s is not None and not self._unread and now > max(begun, self._resumed_at) + limit_s:
                raise self._causes.late(sorted(missing), kinds[0].kind, limit_s, self.absent)
            received = self._unread.popleft() if self._unread else self._receive(max(0.0, self._next_check - now))
            if received is None:
                self._next_check = now  # Check now: the next check is due, or a process has died.
            elif isinstance(received.message, kinds):
                yield received.source, received.message, received.frames
            elif (
                isinstance(received.message, messages.Hello)
                and received.source in self.absent
                and self._welcomes(received.source, received.message)
                and self.has_joined
                and messages.Abandoned not in kinds  # a process in the old epoch drops messages of a replacement
            ):
                self.rejoined()

    def _receive(self, timeout_s: float) -> Received | None:
        """Return the next message, or None if none arrives in time. Raises the error of a worker that has failed."""
        received, error = self._read(timeout_s)
        if received is not None and error is not None:
            raise self._causes.root_cause(error, self._read, received.source)
        return received

    def _read(self, timeout_s: float) -> tuple[Received | None, RunnerError | None]:
        """Return the next message, or None if none arrives in time, and the error that the message reports, if any."""
        received = self.endpoint.receive(timeout_s)
        return received, None if received is None else self._handle_report(received)

    def _check_workers(self, awaited: Collection[str]) -> None:
        """Read and keep the messages that have arrived, then raise if a worker has died, is silent, stuck or late."""
        now = self.clock()
        if now - self._checked_at > self.monitor.gap_s:
            # The master was stopped or busy. Heartbeats sent meanwhile may still be on the way.
            self.monitor.restart(now)
            self._resumed_at = now
        self._checked_at = now
        while self.clock() <= now + _DRAIN_S and (received := self._receive(0.0)) is not None:
            if not isinstance(received.message, messages.Heartbeat | messages.Log | messages.TensorsPart):
                self._unread.append(received)
        if (death := self.supervisor.failure()) is not None:
            raise self._causes.root_cause(death, self._read)
        # Users may start replacements at any time, but those that this process or a command has started must join in
        # time. For awaited ones of a command, which may be short of nodes, ``_answers`` has the limit.
        hellos = {each.source for each in self._unread if isinstance(each.message, messages.Hello)}
        limited = self.supervisor.workers.keys() | self.supervisor.started.difference(awaited)
        late = self.absent & limited - self.joined.hellos.keys() - hellos
        if late and now > max(self._replaced_at, self._resumed_at) + self.launcher.join_s:
            raise self._causes.late(sorted(late), messages.Hello.kind, self.launcher.join_s, self.absent, goes_on=True)
        # Pass the time read above: if the master was stopped since then, the next check notices the gap.
        if (lost := self._causes.silent_or_stuck(now)) is not None:
            raise lost
        self._next_check = self.clock() + CHECK_S

    def _check_connections(self) -> None:
        """Raise if messages to a worker have no connection, although no end of the worker was noticed."""
        for worker in self._connections.lost(self.clock()):
            if worker in self.workers and worker not in self.absent:
                text = f"{self.endpoint.name} has lost its connection to {worker}"
                raise self._causes.unreachable(worker, text, self._read)

    def _handle_report(self, received: Received) -> RunnerError | None:
        """Handle a heartbeat, log lines or a part of a fetched tensor; return the error of a worker that failed.

        Also records which plans the replacements have loaded.
        """
        match received.message:
            case messages.Heartbeat(section=section, step=step):
                self.monitor.heartbeat(messages.process_of(received.source), section, step, self.clock())
            case messages.Hello() as hello if messages.is_spare(received.source):
                self.spares.welcome(received.source, hello)
            case messages.Failed() as failed:
                return self._causes.reported(received.source, failed)
            case messages.Log(lines=lines):
                # Processes that the supervisor started write their logs themselves. The name does not show this,
                # because a spare process that took the place of a worker has sent lines under its first name.
                if self.supervisor.workers.keys().isdisjoint(self.workers):
                    with open(self._causes.log_of(messages.process_of(received.source)), "a", encoding="utf-8") as file:
                        file.writelines(f"{line}\n" for line in reported_lines(lines))
            case messages.TensorsPart():
                self.arrivals.add(received)
            case messages.Loaded(plan=plan):
                self.loading.discard((received.source, plan))
        return None
