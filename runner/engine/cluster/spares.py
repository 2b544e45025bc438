"""Spare processes, which have joined the run and wait to replace lost workers."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.engine.cluster.joining import HOST, Joined, difference
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.endpoint import Endpoint
from runner.engine.cluster.transport.heartbeat import STOPPED_S, HeartbeatMonitor, Verdict
from runner.engine.cluster.transport.private_directory import inbox_address, inbox_path
from runner.errors import ClusterError, ResourceError, SecurityError

log = logging.getLogger(__name__)

_MOST_DOCUMENTS = 32  # the inbox and the memory of a spare process can hold this number of documents


@dataclass
class Spares:
    """The spare processes of a worker group. For the attributes without a description, see ``WorkerGroup``.

    joined: the processes that have joined the run. ticket: returns the encoded ticket of a worker for an epoch.
    """

    joined: Joined
    directory: Path
    endpoint: Endpoint
    supervisor: Supervisor
    monitor: HeartbeatMonitor
    logs: Path
    clock: Callable[[], float]
    start: Callable[[Collection[str], int, Mapping[str, str]], None]
    ticket: Callable[[str, int], bytes]
    started: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._documents: list[tuple[messages.Setup | messages.Load, bytes]] = []

    def prepare(self, message: messages.Setup | messages.Load, document: bytes) -> None:
        """Send a document to all spare processes, also to those that join later; see ``preparation``.

        A spare process that cannot be reached is removed. Documents beyond ``_MOST_DOCUMENTS`` are not sent; their work
        is done when the process replaces a worker.
        """
        if len(self._documents) == _MOST_DOCUMENTS:
            return
        self._documents.append((message, document))
        for name in list(self.joined.spares):
            try:
                self.endpoint.send(name, message, [document])
            except ClusterError as error:
                log.warning("%s", error)
                self.remove(name)

    def start_missing(self) -> None:
        """Start spare processes in place of those that were used or have ended.

        Raises ResourceError if a process cannot be started, ClusterError if no host has room for it.
        """
        for name in self.started.intersection(self.supervisor.ended):
            self.remove(name)
        missing = [each for each in messages.spare_names(self.joined.launcher.spares) if each not in self.started]
        if missing:
            epoch = self.endpoint.epoch
            self.endpoint.advance(epoch, missing)  # forgets the connections of the earlier processes
            for name in missing:  # a process that was killed leaves the file of its socket
                inbox_path(inbox_address(self.directory, name)).unlink(missing_ok=True)
            try:
                self.start(missing, epoch, self.joined.hosts)
            except BaseException:
                self.started.update(self.supervisor.workers.keys() & missing)  # those that were started first
                raise
            self.started.update(missing)

    def start_again(self) -> None:
        """Call :meth:`start_missing` in a run that can go on without spare processes: log errors as warnings."""
        try:
            self.start_missing()
        except (ClusterError, ResourceError) as error:
            log.warning("no new spare process can be started: %s", error)

    def welcome(self, name: str, hello: messages.Hello) -> None:
        """Accept a spare process. If it may not join or cannot be reached, log a warning."""
        where = f"{name} on {hello.facts.get(HOST, 'an unknown host')} (pid {hello.pid})"
        if reason := difference(hello.facts, self.joined.facts):
            log.warning("%s was refused: %s", where, reason)
            self.endpoint.refuse(name, reason)
            return
        try:
            self.endpoint.connect(name, hello.address or inbox_address(self.directory, name))
            self.endpoint.send(name, messages.Welcome())
            for message, document in self._documents:
                self.endpoint.send(name, message, [document])
        except (ClusterError, SecurityError) as error:
            log.warning("%s cannot be used: %s", where, error)
            return
        self.joined.spares[name] = hello
        self.monitor.watch(name, self.clock())

    def take(self, worker: str, epoch: int, read_at: float) -> bool:
        """Replace a lost worker, which was fenced, by a spare process; return False if there is none.

        read_at: time at which heartbeats were read last.
        """
        while (spare := self.joined.take_spare(worker, self._ready(read_at))) is not None:
            self.started.discard(spare)
            self.monitor.forget(spare)
            own_log = self.supervisor.rename(spare, worker, self.logs / f"{worker}.log")
            try:
                self.endpoint.send(spare, messages.Replace(own_log), [self.ticket(worker, epoch)])
            except ClusterError as error:
                log.warning("%s", error)
                self.supervisor.remove(worker)
                continue
            self.joined.launcher.exchange(worker, spare)
            log.info("%s takes the place of %s", spare, worker)
            self.monitor.watch(worker, self.clock())
            return True
        return False

    def _ready(self, read_at: float) -> set[str]:
        """Return the spare processes that have not ended, and had recently sent a heartbeat at ``read_at``."""
        monitor, ended = self.monitor, self.supervisor.ended
        living = {name for name in self.joined.spares if name not in ended and not self.supervisor.is_stopped(name)}
        return {each for each in living if monitor.has_heard(each) and monitor.silence_s(each, read_at) <= STOPPED_S}

    def remove(self, name: str) -> None:
        """End a spare process of this host or give it up, and forget it; log a warning if it does not end."""
        try:
            self.supervisor.remove(name)
        except ClusterError as error:
            log.warning("%s", error)
        self.monitor.forget(name)
        inbox_path(inbox_address(self.directory, name)).unlink(missing_ok=True)
        self.joined.spares.pop(name, None)
        self.started.discard(name)

    def without_lost(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Remove the spare processes that are lost according to their heartbeats; return the verdicts about workers."""
        for verdict in verdicts:
            if messages.is_spare(verdict.worker):
                log.warning("%s, so the run goes on without this spare process", verdict)
                self.remove(verdict.worker)
        return [verdict for verdict in verdicts if not messages.is_spare(verdict.worker)]

    def end(self, shutdown: messages.Shutdown) -> None:
        """Make the spare processes exit, and end those that have not joined yet."""
        for name in self.joined.spares:
            self.endpoint.offer(name, shutdown)
        for name in self.started - self.joined.spares.keys():
            self.remove(name)
        self.supervisor.end_idle_commands()
