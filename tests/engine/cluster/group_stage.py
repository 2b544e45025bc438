"""A group of two workers on a virtual clock; the worker processes only sleep."""

import os
import select
import signal
from pathlib import Path

from runner.engine.cluster.processes import Supervisor
from runner.engine.cluster.transport.heartbeat_monitor import HeartbeatMonitor
from runner.engine.cluster.transport.messages import Heartbeat, Message
from runner.engine.cluster.transport.names import MASTER
from runner.engine.cluster.worker_group import WorkerGroup
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeEndpoint, FakeNetwork, Faults

SOON_S = 10.0
SLEEPS = ("/bin/sleep", "60")
WORKERS = ("worker-0", "worker-1")


class Stage:
    """A group of two workers, and the workers' endpoints."""

    def __init__(self, supervisor: Supervisor, logs: Path, command: tuple[str, ...] = SLEEPS) -> None:
        self.network = FakeNetwork()
        self.supervisor = supervisor
        self.monitor = HeartbeatMonitor()
        clock = self.network.clock
        master = self._endpoint(MASTER)
        self.group = WorkerGroup(WORKERS, logs, master, supervisor, self.monitor, lambda: clock.now)
        self.peers = {name: self._endpoint(name) for name in (*WORKERS, "worker_heartbeat-0", "worker_heartbeat-1")}
        for name, peer in self.peers.items():
            peer.connect(MASTER)
            if name in WORKERS:
                supervisor.start(name, command, logs / f"{name}.log", {})
                self.monitor.watch(name, clock.now)

    def _endpoint(self, name: str) -> FakeEndpoint:
        return self.network.endpoint(identity(name), peers=2)

    def send(self, name: str, *messages: Message, after_s: float = 0.0) -> None:
        """Send a message from a peer that arrives after some seconds."""
        self.network.faults = Faults(delay_s=(after_s, after_s))
        for message in messages:
            self.peers[name].send(MASTER, message)
        self.network.faults = Faults()

    def beat(self, worker: int, section: str, step: int, *times_s: float) -> None:
        """Send heartbeats of a worker that arrive after some seconds, by default one at once."""
        for after_s in times_s or (0.0,):
            self.send(f"worker_heartbeat-{worker}", Heartbeat(section, step), after_s=after_s)

    def heard(self, worker: str) -> list[type[Message]]:
        """The kinds of all messages from the master to a worker."""
        heard = []
        while (received := self.peers[worker].receive(0)) is not None:
            heard.append(type(received.message))
        return heard

    def kill(self, worker: str) -> None:
        """Kill a worker's process."""
        process = self.supervisor.workers[worker]
        os.kill(process.pid, signal.SIGKILL)
        assert select.select([process], [], [], SOON_S)[0]
