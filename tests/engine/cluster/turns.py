"""Threads on the simulated network, of which one runs at a time; the schedule is a function of the seed."""

import random
import threading
from collections.abc import Callable, Sequence

from runner.engine.cluster.transport.endpoint import Frame, Received
from runner.engine.cluster.transport.messages import Message
from tests.engine.cluster.transport.fake_network import FakeEndpoint, FakeNetwork

JOIN_S = 20.0
"""Time limit that only a failing test reaches."""


class Over(BaseException):
    """Ends a thread that still waits for a message at the end of a test."""


class Turns:
    """The turn to run. A thread gives it up when it waits for a message; when all wait, the clock advances."""

    def __init__(self, network: FakeNetwork, seed: int) -> None:
        self.network = network
        self._random = random.Random(seed)
        self._batons: dict[str, threading.Semaphore] = {}
        self._waiting: dict[str, float] = {}
        self._threads: list[threading.Thread] = []
        self._over = False

    def join(self, name: str) -> None:
        """Add the calling thread as ``name``; it has the turn."""
        self._batons[name] = threading.Semaphore(0)

    def start(self, name: str, body: Callable[[], None]) -> None:
        """Add ``body`` as ``name`` in a thread that begins with its first turn."""
        self.join(name)
        self._waiting[name] = self.network.clock.now

        def take_part() -> None:
            try:
                self._await_turn(name)
                body()
            except Over:
                return
            self._pass_on()

        self._threads.append(threading.Thread(target=take_part, name=name, daemon=True))
        self._threads[-1].start()

    def wait(self, name: str, deadline: float) -> None:
        """Let others run until a message is due for ``name`` or its deadline has passed."""
        self._waiting[name] = deadline
        self._pass_on()
        self._await_turn(name)

    def end(self) -> None:
        """End all threads. Called by the thread that has the turn."""
        self._over = True
        for baton in self._batons.values():
            baton.release()
        for thread in self._threads:
            thread.join(JOIN_S)
            assert not thread.is_alive(), f"{thread.name} still runs"

    def _await_turn(self, name: str) -> None:
        self._batons[name].acquire()
        if self._over:
            raise Over

    def _pass_on(self) -> None:
        """Give the turn to one of the threads that can continue first."""
        ready = {name: min(deadline, self._due(name)) for name, deadline in self._waiting.items()}
        now = max(self.network.clock.now, min(ready.values()))
        chosen = self._random.choice(sorted(name for name, at in ready.items() if at <= now))
        self.network.clock.advance_to(now)
        del self._waiting[chosen]
        self._batons[chosen].release()

    def _due(self, name: str) -> float:
        coming = self.network.next_for(name)
        return float("inf") if coming is None else coming[1]


class TurnTaking:
    """A FakeEndpoint that lets others run while it waits."""

    def __init__(self, turns: Turns, endpoint: FakeEndpoint) -> None:
        self._turns = turns
        self._endpoint = endpoint

    @property
    def name(self) -> str:
        return self._endpoint.name

    def connect(self, peer: str, address: str = "") -> None:
        self._endpoint.connect(peer, address)

    def send(self, peer: str, message: Message, frames: Sequence[Frame] = ()) -> None:
        self._endpoint.send(peer, message, frames)

    def receive(self, timeout_s: float) -> Received | None:
        """The next message; others run until it arrives."""
        clock = self._turns.network.clock
        deadline = clock.now + timeout_s
        while True:
            self._turns.wait(self.name, deadline)
            received = self._endpoint.receive(0)
            if received is not None or clock.now >= deadline:
                return received

    def close(self) -> None:
        self._endpoint.close()
