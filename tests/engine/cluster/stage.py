"""A test harness for the messages between a master and its workers, on a virtual clock, without workers."""

import os
import select
import signal
from pathlib import Path

from runner.engine.cluster.launchers import LocalLauncher
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport.heartbeat import HeartbeatMonitor
from runner.engine.cluster.transport.messages import MASTER, Heartbeat, Message
from runner.engine.cluster.worker_group import WorkerGroup
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeEndpoint, FakeNetwork, Faults

SOON_S = 10.0
SLEEPS = ("/bin/sleep", "60")
WORKERS = ("worker-0", "worker-1")
SPARES = 2


class Stage:
    """A worker group of two workers, and the endpoints of these workers."""

    def __init__(self, supervisor: Supervisor, logs: Path, command: tuple[str, ...] | None = SLEEPS) -> None:
        """``command``: starts the process of a worker; None if the processes are on other hosts."""
        self.network = FakeNetwork()
        self.supervisor = supervisor
        self.monitor = HeartbeatMonitor()
        clock = self.network.clock
        master = self._endpoint(MASTER)
        given = (WORKERS, logs, master, supervisor, self.monitor, logs, LocalLauncher(logs, 1, spares=SPARES))
        self.group = WorkerGroup(*given, clock=lambda: clock.now)
        self.peers = {name: self._endpoint(name) for name in (*WORKERS, "worker_heartbeat-0", "worker_heartbeat-1")}
        for name, peer in self.peers.items():
            peer.connect(MASTER)
            if name in WORKERS and command is not None:
                supervisor.start(name, command, logs / f"{name}.log", {})
                self.monitor.watch(name, clock.now)

    def set_up(self) -> "Stage":
        """Set up the workers, which have received all messages of the setup afterwards."""
        self.group.set_up(lambda addresses: b"")
        for worker in WORKERS:
            self.heard(worker)
        return self

    def _endpoint(self, name: str) -> FakeEndpoint:
        return self.network.endpoint(identity(name), peers=2, spares=SPARES)

    def send(self, name: str, *sent: Message, after_s: float = 0.0) -> None:
        """Send messages from a peer; each arrives after ``after_s`` seconds."""
        self.network.faults = Faults(delay_s=(after_s, after_s))
        for message in sent:
            self.peers[name].send(MASTER, message)
        self.network.faults = Faults()

    def beat(self, worker: int, section: str, step: int, *times_s: float) -> None:
        """Send heartbeats of a worker that arrive after ``times_s`` seconds, by default one heartbeat without delay."""
        for after_s in times_s or (0.0,):
            self.send(f"worker_heartbeat-{worker}", Heartbeat(section, step), after_s=after_s)

    def heard(self, worker: str) -> list[type[Message]]:
        """Return the types of the messages that a worker has received from the master since the last call."""
        heard = []
        while (received := self.peers[worker].receive(0)) is not None:
            heard.append(type(received.message))
        return heard

    def kill(self, worker: str) -> None:
        """Kill the process of a worker."""
        process = self.supervisor.workers[worker]
        os.kill(process.pid, signal.SIGKILL)
        assert select.select([process], [], [], SOON_S)[0]
