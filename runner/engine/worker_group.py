"""The worker processes of a session and the master's conversation with them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from runner.engine.processes import Supervisor, thread_budget, worker_argv
from runner.engine.transport.address import inbox_address
from runner.engine.transport.endpoint import Endpoint, Identity, Limits, Received
from runner.engine.transport.heartbeat_monitor import HeartbeatMonitor
from runner.engine.transport.messages import Bye, Failed, Heartbeat, Hello, Message, Setup, Shutdown, Welcome
from runner.engine.transport.names import MASTER, SERVER_ROLE, beating_process, split_name
from runner.engine.transport.private_directory import PrivateDirectory
from runner.engine.transport.text import printable, printable_lines
from runner.engine.transport.tokens import write_token
from runner.engine.transport.zmq_context import open_context
from runner.engine.transport.zmq_endpoint import ZmqEndpoint
from runner.errors import ClusterError, Interrupted, RunnerError

SPARE_MESSAGES = 256
"""Room in every inbox beside what a step sends."""

_LOOK_S = 0.5
_LAST_WORDS_S = 0.2
_JOIN_S = 60.0
_BYE_S = 10.0
_EXIT_S = 5.0
_SEND_S = 1.0
_MOST_LINES = 40
_MOST_COLUMNS = 1000

Answer = TypeVar("Answer", bound=Message)


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
) -> Iterator[WorkerGroup]:
    """Start worker processes and set them up; leaving the context leaves no process and no shared memory.

    workers: names of all processes, parameter servers too. identity: the master's. setup: the document that each
    gets. logs: folder for their logs. threads: kernel threads of each. queued_messages: how many messages one worker
    may send another before that one reads. monitor: judges heartbeats. options: more of their command line, no secrets.

    Raises ResourceError when one cannot be started, and what :meth:`WorkerGroup.gather` raises.
    """
    servers = sum(split_name(worker)[0] == SERVER_ROLE for worker in workers)
    peers = len(workers) - servers
    limits = Limits(peers, servers, queued_messages=SPARE_MESSAGES, send_timeout_s=_SEND_S)
    with (
        PrivateDirectory.create() as directory,
        open_context(3 * len(workers) + 4) as context,
        ZmqEndpoint(context, identity, inbox_address(directory.path, MASTER), limits) as endpoint,
        Supervisor() as supervisor,
    ):
        group = WorkerGroup(workers, directory.path, endpoint, supervisor, monitor)
        for worker in workers:
            argv = [
                *worker_argv(
                    inbox_address(directory.path, MASTER),
                    worker,
                    write_token(directory.path, worker, identity.token),
                ),
                *("--run", identity.run, "--epoch", str(identity.epoch)),
                *("--peers", str(peers), "--servers", str(servers), "--queued-messages", str(queued_messages)),
                *options,
            ]
            monitor.watch(worker, time.monotonic())
            supervisor.start(worker, argv, logs / f"{worker}.log", {**os.environ, **thread_budget(threads)})
        endpoint.wake_on(supervisor.pidfds)
        group.set_up(setup)
        yield group
        group.dismiss()


class WorkerGroup:
    """Started workers, told and listened to by name. Made by :func:`start_workers`."""

    def __init__(
        self,
        workers: Sequence[str],
        directory: Path,
        endpoint: Endpoint,
        supervisor: Supervisor,
        monitor: HeartbeatMonitor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """directory: the private one, in which sockets and arenas lie. clock: what endpoint and monitor go by."""
        self._workers = tuple(workers)
        self.directory = directory
        self._endpoint = endpoint
        self._supervisor = supervisor
        self._monitor = monitor
        self._clock = clock
        self._look_at = clock() + _LOOK_S
        self._broken_off = False

    def tell(self, worker: str, message: Message, *documents: bytes) -> None:
        """Send a message; where that fails because the worker is gone, say why it is.

        Raises ClusterError also after any other conversation has failed: nobody knows what workers are busy with.
        """
        if self._broken_off:
            raise ClusterError(
                f"{worker} was not told {message.kind!r}: workers cannot go on after an error, start anew"
            )
        with self._breaking_off():
            try:
                self._endpoint.send(worker, message, documents)
            except ClusterError as error:
                raise self._cause(error) from None

    def gather(
        self,
        workers: Collection[str],
        kind: type[Answer],
        accept: Callable[[Answer], bool] = lambda answer: True,
        limit_s: float | None = None,
    ) -> dict[str, Answer]:
        """Read messages until one of ``kind`` that is accepted has come from each worker; return them by worker.

        Raises ClusterError when a worker dies, is silent or stuck, or the limit passes; a worker's own error.
        """
        with self._breaking_off():
            missing = set(workers)
            answers: dict[str, Answer] = {}
            coming = self._answers(missing, (kind,), limit_s)
            while missing:
                worker, answer, _ = next(coming)
                if worker in missing and accept(answer):
                    answers[worker] = answer
                    missing.remove(worker)
            return answers

    def next(self, *kinds: type[Answer]) -> tuple[str, Answer, Sequence[memoryview]]:
        """Read messages until one of ``kinds`` comes; return its worker, it, and what came with it.

        Raises what :meth:`gather` raises.
        """
        with self._breaking_off():
            return next(self._answers(self._workers, kinds, None))

    def set_up(self, document: bytes) -> None:
        """Wait for every worker's hello, answer it, and tell each what it needs to know."""
        self.gather(self._workers, Hello, limit_s=_JOIN_S)
        for worker in self._workers:
            self._endpoint.connect(worker, inbox_address(self.directory, worker))
            self.tell(worker, Welcome())
        # Only now: a worker that is set up connects to the others, which must be listening.
        for worker in self._workers:
            self.tell(worker, Setup(), document)

    def dismiss(self) -> None:
        """Tell every worker to leave and give it time to; the supervisor ends who stays.

        After a failed conversation nobody is told: a worker that left now would fail another in its step.
        """
        if self._broken_off:
            return
        for worker in self._workers:
            self.tell(worker, Shutdown())
            self._supervisor.expect_exit(worker)
            self._monitor.forget(worker)
        self.gather(self._workers, Bye, limit_s=_BYE_S)
        self._supervisor.wait_for_exit(_EXIT_S)

    @contextmanager
    def _breaking_off(self) -> Iterator[None]:
        """Note that whatever passes, an interruption too, leaves workers in the middle of something."""
        try:
            yield
        except BaseException:
            self._broken_off = True
            raise

    def _answers(
        self, missing: Collection[str], kinds: tuple[type[Answer], ...], limit_s: float | None
    ) -> Iterator[tuple[str, Answer, Sequence[memoryview]]]:
        """Give out the messages of ``kinds`` as they come. missing: whose are awaited, which may change meanwhile."""
        deadline = None if limit_s is None else self._clock() + limit_s
        while True:
            received = self._endpoint.receive(max(0.0, self._look_at - self._clock()))
            now = self._clock()
            if received is not None:
                message = received.message
                error = self._note(received, now)
                if error is not None:
                    raise self._cause(error, received.source)
                if isinstance(message, kinds):
                    yield received.source, message, received.frames
                continue
            # Only an empty inbox is judged: what a dying worker said comes before how it died.
            self._refuse_deaths()
            self._judge(now)
            self._look_at = now + _LOOK_S
            if deadline is not None and now > deadline:
                silent = sorted(missing)
                logs = ", ".join(str(self._supervisor.workers[worker].log_path) for worker in silent)
                raise ClusterError(
                    f"no {kinds[0].kind!r} from {', '.join(silent)} within {limit_s:g} s; what they did: {logs}"
                )

    def _refuse_deaths(self) -> None:
        """Raise for a worker that is gone: the error that it sent, else how it ended."""
        try:
            self._supervisor.check()
        except ClusterError as death:
            raise self._cause(death) from None

    def _cause(self, error: RunnerError, teller: str = "") -> RunnerError:
        """What lies behind ``error``: the loss of a worker, told by another or by its end, may overtake its own words.

        That is the first other error that a worker tells within the time that a message takes; else the end of a
        worker before that of ``teller``, who has told ``error`` and ends for it; else ``error`` itself.
        """
        if not isinstance(error, ClusterError):
            return error
        deadline = self._clock() + _LAST_WORDS_S
        while (received := self._endpoint.receive(max(0.0, deadline - self._clock()))) is not None:
            told = self._note(received, self._clock())
            if told is not None and not isinstance(told, ClusterError):
                return told
        if self._supervisor.first_dead() == teller:
            return error
        try:
            self._supervisor.check()
        except ClusterError as death:
            return death
        return error

    def _note(self, received: Received, now: float) -> RunnerError | None:
        """Take in what a worker says unasked; return its own error when it has failed."""
        match received.message:
            case Heartbeat(section=section, step=step):
                self._monitor.heartbeat(beating_process(received.source), section, step, now)
            case Failed() as failed:
                return _as_raised(received.source, failed, self._supervisor.workers[received.source].log_path)
        return None

    def _judge(self, now: float) -> None:
        verdicts = self._monitor.tick(now)
        if verdicts:
            process = self._supervisor.workers[verdicts[0].worker]
            process.dump_stack()
            raise ClusterError(
                f"{verdicts[0]}; the stacks of its threads, unless it is stopped altogether, are in {process.log_path}"
            )


_CLASSES: Mapping[str, type[RunnerError]] = {
    kind.__name__: kind for kind in RunnerError.__subclasses__() if kind is not Interrupted
}


def _as_raised(worker: str, failed: Failed, log_path: Path) -> RunnerError:
    """The error a worker reported: in its own class where that is one of runner's, else named in the text."""
    said = "\n".join(printable_lines(failed.text, lines=_MOST_LINES, width=_MOST_COLUMNS))
    if failed.error in _CLASSES:
        return _CLASSES[failed.error](f"{worker}: {said}")
    return RunnerError(f"{worker}: {printable(failed.error)}: {said}\nThe traceback is in its log: {log_path}")
