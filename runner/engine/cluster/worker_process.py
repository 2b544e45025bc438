"""The process of a worker or parameter server: it joins the run, sends heartbeats and runs the main loop.

A spare process also joins the run, prepares and sends heartbeats. When the master sends it the ticket of a lost
process, it joins again as that process.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from types import FrameType

from threadpoolctl import threadpool_limits

from runner.engine.cluster.joining import host_facts
from runner.engine.cluster.mailbox import RECEIVE_LIMIT_S, WAIT_S, Mailbox
from runner.engine.cluster.preparation import Preparation
from runner.engine.cluster.processes import dump_stacks_on_signal
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.heartbeat import HeartbeatThread, Progress
from runner.engine.cluster.transport.private_directory import own_address
from runner.engine.cluster.transport.ticket import Ticket, read_ticket
from runner.engine.cluster.transport.zmq_endpoint import Outbox, ZmqEndpoint, is_sending
from runner.engine.cluster.transport.zmq_sockets import open_context
from runner.engine.cluster.worker import SourceMaker, Worker
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ClusterError, SecurityError
from runner.system.machine import usable_cores
from runner.system.redaction import SecretlessFormatter
from runner.system.text import ascii_only

log = logging.getLogger(__name__)

_SPINS = 2000  # number of reads of a doorbell before a wait sleeps, if the cores suffice: about 50 microseconds
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main(master: str, key: Path, host: str, facts: Mapping[str, str], make_source: SourceMaker) -> int:
    """Run a worker or a spare process until the master sends shutdown; return the exit code.

    master: address of the master. key: file with the ticket of the process. host: name of this host for messages; ""
    for its own name. facts: see :mod:`~runner.engine.cluster.joining`. make_source: makes the input source from the
    master's description. Raises SecurityError if the ticket cannot be used, ConfigError if ``master`` is not an address
    of a run, ClusterError if the master is unreachable or refuses the process.
    """
    dump_stacks_on_signal()
    interrupts = Interrupts()
    to_log = logging.StreamHandler()
    to_log.setFormatter(SecretlessFormatter(_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[to_log])
    registry = load_kernels()  # first, because thread limits apply only to loaded libraries
    preparation = Preparation(make_source, registry)

    def work(joined: _Joined, ticket: Ticket) -> int:
        processes = messages.process_names(ticket.peers, ticket.servers)
        given = (master, processes, preparation.source, registry, joined.progress, joined.lines)
        spins = _SPINS if len(processes) * ticket.threads <= usable_cores() else 0
        worker = Worker(joined.endpoint, Mailbox(joined.endpoint), *given, spins, preparation.assignments)
        return worker.serve(joined.check)

    ticket, facts = read_ticket(key), {**host_facts(host), **facts}
    with _joined(master, ticket, facts, interrupts) as joined:
        key.unlink(missing_ok=True)
        if ticket.role != messages.SPARE_ROLE:
            return work(joined, ticket)
        replaced = _wait_for_replacement(joined, preparation)
    if replaced is None:
        preparation.close()
        return 0
    with _joined(master, replaced, facts, interrupts) as joined:
        return work(joined, replaced)


@dataclass(frozen=True)
class _Joined:
    """A process that has joined the run. lines: log lines for the master. check: raises an error of another thread."""

    endpoint: ZmqEndpoint
    progress: Progress
    lines: SimpleQueue[str]
    check: Callable[[], None]


@contextmanager
def _joined(master: str, ticket: Ticket, facts: Mapping[str, str], interrupts: "Interrupts") -> Iterator[_Joined]:
    """Join the run under the name in a ticket, and send heartbeats while the block runs."""
    # A stopped master accepts no connection until it continues, so the time limit is long.
    identity, limits = ticket.identity, ticket.limits(connect_timeout_s=RECEIVE_LIMIT_S)
    progress = Progress()
    connections = (2 + ticket.lanes) * (ticket.peers + ticket.servers) + 6
    with (
        open_context(connections, identity.keys, ticket.lanes) as context,
        ZmqEndpoint(context, identity, own_address(master, identity.name), limits) as endpoint,
    ):
        endpoint.join(messages.MASTER, master, facts)
        _wait_for_welcome(endpoint)

        def open_heartbeat() -> Outbox:
            beat = replace(identity, role=messages.heartbeat_role(identity.role))
            outbox = Outbox(context, beat, limits)
            outbox.connect(messages.MASTER, master)
            return outbox

        over_tcp = identity.keys is not None
        # On one host, the kernel ends a worker whose master has ended.
        lost = _exit_without_master if over_tcp else lambda: None
        with (
            HeartbeatThread(open_heartbeat, progress, lost=lost) as heartbeat,
            threadpool_limits(ticket.threads),
            _lines_to(heartbeat.lines) if over_tcp else nullcontext(),
        ):
            log.info("%s has joined the run (pid %d)", identity.name, os.getpid())

            def check() -> None:
                heartbeat.check()
                interrupts.check()

            yield _Joined(endpoint, progress, heartbeat.lines, check)


class Interrupts:
    """A handler of SIGINT that raises KeyboardInterrupt and remembers the signal.

    Python only prints an exception that is raised while it runs a finalizer. While a message is sent, no exception is
    raised, because the next message, which reports the reason to the master, would have the number of the interrupted
    one. The main loop calls :meth:`check`, so that such signals end the process too.
    """

    def __init__(self) -> None:
        self._noted = False
        # A shell that starts a process in the background makes it ignore Ctrl-C.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._note)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has arrived."""
        if self._noted:
            raise KeyboardInterrupt

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._noted = True
        if not is_sending(frame):
            raise KeyboardInterrupt


def _wait_for_replacement(joined: _Joined, preparation: Preparation) -> Ticket | None:
    """Prepare until the ticket of a lost process arrives; return the ticket, or None if the run has ended.

    If the log of the lost process is on this host, the output of this process goes there from then on.
    """
    joined.progress.enter(messages.IDLE, 0)
    while True:
        joined.check()
        received = joined.endpoint.receive(WAIT_S)
        if received is None:
            continue
        match received.message:
            case messages.Replace(log=path):
                if path:
                    _redirect_output(path)
                return Ticket.from_bytes(received.frames[0], "ticket")
            case messages.Shutdown():
                return None
            case messages.Hello():
                continue
            case _:
                preparation.handle(received)


def _redirect_output(path: str) -> None:
    log_file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log_file, stream.fileno())
    os.close(log_file)


def _wait_for_welcome(endpoint: ZmqEndpoint) -> None:
    """Wait until the master has accepted this worker; raises ClusterError if the master refuses it or ends."""
    while True:
        received = endpoint.receive(RECEIVE_LIMIT_S)
        if received is None:
            raise ClusterError(f"{endpoint.name} was not accepted by the master within {RECEIVE_LIMIT_S:g} s")
        if isinstance(received.message, messages.Welcome):
            return
        if not isinstance(received.message, messages.Hello):
            raise SecurityError(f"{received.message.kind!r} from {received.source}, expected a welcome")


@contextmanager
def _lines_to(queue: SimpleQueue[str]) -> Iterator[None]:
    """While the block runs, queue log lines for the heartbeat thread, which sends them to the master."""
    handler = _LineQueueHandler(queue)
    handler.setFormatter(SecretlessFormatter(_FORMAT))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


class _LineQueueHandler(QueueHandler):
    """A handler that puts each log line into a queue."""

    def prepare(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return ascii_only(self.format(record))[: messages.MAX_ERROR_TEXT]


def _exit_without_master() -> None:
    """End this process at once: the main thread may be computing, or waiting for a worker that has ended."""
    print("the connection to the master is lost: this process ends", file=sys.stderr, flush=True)
    os._exit(ClusterError.exit_code)
