"""The process of a worker or parameter server: it joins the run, sends heartbeats and runs the main loop."""

import logging
import os
import signal
import sys
from collections.abc import Mapping
from logging.handlers import QueueHandler
from pathlib import Path
from types import FrameType

from threadpoolctl import threadpool_limits

from runner.engine.cluster.joining import host_facts
from runner.engine.cluster.mailbox import RECEIVE_LIMIT_S, Mailbox
from runner.engine.cluster.processes import dump_stacks_on_signal
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.endpoint import Identity
from runner.engine.cluster.transport.heartbeat import HeartbeatThread, Progress
from runner.engine.cluster.transport.private_directory import own_address
from runner.engine.cluster.transport.ticket import read_ticket
from runner.engine.cluster.transport.zmq_endpoint import Outbox, ZmqEndpoint
from runner.engine.cluster.transport.zmq_sockets import open_context
from runner.engine.cluster.worker import SourceMaker, Worker
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ClusterError, SecurityError
from runner.system.machine import usable_cores
from runner.system.text import ascii_only

log = logging.getLogger(__name__)

_SPINS = 2000  # number of reads of a doorbell before a wait sleeps, if the cores suffice: about 50 microseconds
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main(master: str, key: Path, spare: bool, host: str, facts: Mapping[str, str], make_source: SourceMaker) -> int:
    """Run a worker until the master sends shutdown; return the exit code.

    master: address of the master. key: file with the worker's ticket. spare: whether the worker, before it reads the
    ticket, waits for the path of its log on standard input. host: name of this host for messages; "" for its own name.
    facts: see :mod:`~runner.engine.cluster.joining`. make_source: makes the input source from the master's description.
    Raises SecurityError if the ticket cannot be used, ClusterError if the master is unreachable or refuses the worker.
    """
    dump_stacks_on_signal()
    interrupts = Interrupts()
    logging.basicConfig(level=logging.INFO, format=_FORMAT)
    registry = load_kernels()  # first, because thread limits apply only to loaded libraries
    if spare and not _take_over():
        return 0
    ticket = read_ticket(key)
    # A stopped master accepts no connection until it continues, so the time limit is long.
    identity, limits = ticket.identity, ticket.limits(connect_timeout_s=RECEIVE_LIMIT_S)
    progress = Progress()
    processes = messages.process_names(ticket.peers, ticket.servers)
    connections = (2 + ticket.lanes) * len(processes) + 6
    with (
        open_context(connections, identity.keys, ticket.lanes) as context,
        ZmqEndpoint(context, identity, own_address(master, identity.name), limits) as endpoint,
    ):
        endpoint.join(messages.MASTER, master, {**host_facts(host), **facts})
        _wait_for_welcome(endpoint)
        key.unlink(missing_ok=True)

        def open_heartbeat() -> Outbox:
            role = messages.heartbeat_role(identity.role)
            beat = Identity(identity.run, identity.epoch, role, identity.index, identity.token, identity.keys)
            outbox = Outbox(context, beat, limits)
            outbox.connect(messages.MASTER, master)
            return outbox

        over_tcp = identity.keys is not None
        # On one host, the kernel ends a worker whose master has ended.
        lost = _exit_without_master if over_tcp else lambda: None
        with HeartbeatThread(open_heartbeat, progress, lost=lost) as heartbeat, threadpool_limits(ticket.threads):
            if over_tcp:
                to_master = _LinesToMaster(heartbeat.lines)
                to_master.setFormatter(logging.Formatter(_FORMAT))
                logging.getLogger().addHandler(to_master)
                log.info("%s has joined the run (pid %d)", identity.name, os.getpid())
            mailbox = Mailbox(endpoint)
            given = (master, processes, make_source, registry, progress, heartbeat.lines, over_tcp)
            spins = _SPINS if len(processes) * ticket.threads <= usable_cores() else 0
            worker = Worker(endpoint, mailbox, *given, spins)

            def check() -> None:
                heartbeat.check()
                interrupts.check()

            return worker.serve(check)


class Interrupts:
    """A handler of SIGINT that raises KeyboardInterrupt and remembers the signal.

    Python only prints an exception that is raised while it runs a finaliser. The main loop calls :meth:`check`, so that
    such a signal ends the process too.
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
        raise KeyboardInterrupt


def _take_over() -> bool:
    """Wait to take the place of a lost worker, and redirect output to its log; return False if the run has ended."""
    path = sys.stdin.readline().rstrip("\n")
    if not path:
        return False
    log_file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log_file, stream.fileno())
    os.close(log_file)
    return True


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


class _LinesToMaster(QueueHandler):
    """A handler that queues log lines for the heartbeat thread, which sends them to the master."""

    def prepare(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return ascii_only(self.format(record))[: messages.MAX_ERROR_TEXT]


def _exit_without_master() -> None:
    """End this process at once: the main thread may be computing, or waiting for a worker that has ended."""
    print("the connection to the master is lost: this process ends", file=sys.stderr, flush=True)
    os._exit(ClusterError.exit_code)
