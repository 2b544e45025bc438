"""Workers in threads on a virtual clock; the test acts as the master and sends single messages."""

import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from runner.engine.cluster.assignment import peer_of
from runner.engine.cluster.emulation import EmulatedLink
from runner.engine.cluster.mailbox import Mailbox
from runner.engine.cluster.remote_plan import RemotePlan
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.encoding import encode_document
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.transport.heartbeat import Progress
from runner.engine.cluster.worker import Worker
from runner.engine.cluster.worker_setup import WorkerSetup
from runner.engine.compile.program import Client, InputSlot, InputSource, Program
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph import ops
from runner.engine.graph.device import Gpus, local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.engine.run.session import expand_feeds
from runner.kernels.contract import Array
from runner.kernels.registry import Registry
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeEndpoint, FakeNetwork, Faults

EXAMPLES = 3


def there_and_back() -> Program:
    """Return a program in which worker 0 reads examples and a rate, worker 1 computes, and worker 0 stores the result.

    ``run`` assigns ``w`` = -exp(rate * x) and fetches the new and the old value of ``w``; ``init`` sets ``w`` to 0.
    """
    graph = Graph()
    with graph.device(worker_device(0)):
        x = ops.placeholder(graph, (EXAMPLES,), "float64", name="x")
        rate = ops.placeholder(graph, (), "float64", name="rate")
        w = ops.variable(graph, (EXAMPLES,), "float64", name="w")
        start = ops.assign(graph, w, ops.fill(graph, 0.0, (EXAMPLES,), "float64"), name="start")
    with graph.device(worker_device(1)):
        away = ops.exp(graph, ops.mul(graph, x, rate), name="away")
    with graph.device(worker_device(0)):
        back = ops.neg(graph, away, name="back")
        keep = ops.assign(graph, w, back, name="keep")
    fetches, inputs = {"old": w, "new": back, "away": away}, (InputSlot(x, "train", "x", 0, EXAMPLES),)
    run = Client("run", fetches, targets=(keep.node,), inputs=inputs, feeds={"rate": (rate,)})
    return Program(graph, {"init": Client("init", targets=(start.node,)), "run": run}, {}, workers=2)


def plans_of(program: Program, registry: Registry, gpus: Gpus | None = None) -> ProgramPlans:
    """Return the plans of a program on a cluster with one device for each worker and server."""
    return ProgramPlans(program, local_cluster(program.workers, program.servers, gpus=gpus), registry)


def remote_plan(planned: ProgramPlans, client: str, directory: Path, name: str = "plan") -> RemotePlan:
    """Return the remote plan of a client, with arenas in ``directory``."""
    asked = planned.client(client)
    compiled, plans = planned.compiled(asked.signature), planned.plans(asked.signature)
    return RemotePlan(name, asked, compiled, plans, planned.layouts, directory, set(map(peer_of, plans)))


JOIN_S = 20.0  # a time limit that is reached only if a test fails


class Over(BaseException):
    """The exception that ends threads that still wait for a message at the end of a test."""


class Turns:
    """A scheduler: only the thread that has the turn runs. To wait, it yields the turn; if all wait, time advances."""

    def __init__(self, network: FakeNetwork, seed: int) -> None:
        self.network = network
        self._random = random.Random(seed)
        self._batons: dict[str, threading.Semaphore] = {}
        self._waiting: dict[str, float] = {}
        self._threads: list[threading.Thread] = []
        self._over = False

    def join(self, name: str) -> None:
        """Register a thread under ``name``. The one registered thread that is not waiting has the turn."""
        self._batons[name] = threading.Semaphore(0)

    def start(self, name: str, body: Callable[[], None]) -> None:
        """Start a thread, registered under ``name``, that calls ``body`` when it first has the turn."""
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
        """Yield the turn until a message is due for ``name`` or the deadline has passed."""
        self._waiting[name] = deadline
        self._pass_on()
        self._await_turn(name)

    def end(self) -> None:
        """End all threads. Only the thread that has the turn may call this method."""
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
        """Choose at random one of the threads that can continue earliest, and give it the turn."""
        ready = {name: min(deadline, self._due(name)) for name, deadline in self._waiting.items()}
        now = max(self.network.clock.now, min(ready.values()))
        chosen = self._random.choice(sorted(name for name, at in ready.items() if at <= now))
        self.network.clock.advance_to(now)
        del self._waiting[chosen]
        self._batons[chosen].release()

    def _due(self, name: str) -> float:
        coming = self.network.next_for(name)
        return float("inf") if coming is None else coming[1]


class TurnTaking(FakeEndpoint):
    """A FakeEndpoint that yields the turn to other threads while it waits."""

    def __init__(self, turns: Turns, name: str, workers: int, servers: int) -> None:
        super().__init__(turns.network, identity(name), workers, servers)
        self._turns = turns

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next message, or None after ``timeout_s``; other threads run meanwhile."""
        clock = self._turns.network.clock
        deadline = clock.now + timeout_s
        while True:
            self._turns.wait(self.name, deadline)
            received = super().receive(0)
            if received is not None or clock.now >= deadline:
                return received


Kind = TypeVar("Kind", bound=messages.Message)

ADDRESS = "ipc:///virtual/master-0"
PATIENCE_S = 10_000.0  # virtual seconds that the master waits for a message; longer than every limit of a worker


SETUP = WorkerSetup({}, check_finite=False, link=None).to_document()
"""A serialized setup with an empty description of the input source, no link and no GPUs."""


class NoAnswer(Exception):
    """The error raised if the expected message does not arrive."""


class WorkerFailed(Exception):
    """The error raised if a worker reports a failure while the master waits for another message."""


class VirtualCluster:
    """The workers and servers of a program on one network; see :func:`virtual_cluster`."""

    def __init__(
        self,
        program: Program,
        directory: Path,
        registry: Registry,
        make_source: Callable[[Mapping[str, Any]], InputSource],
        network: FakeNetwork,
        seed: int,
        gpus: Gpus | None,
    ) -> None:
        self.program = program
        self.network = network
        self.turns = Turns(network, seed)
        self.workers = messages.process_names(program.workers, program.servers)
        self.mailboxes: dict[str, Mailbox] = {}
        self.progress = {name: Progress() for name in self.workers}
        self.ended: dict[str, int | Exception] = {}
        self.endpoint = self._endpoint(messages.MASTER)
        self._directory = directory
        self._registry = registry
        self._gpus = () if gpus is None else gpus.of_workers
        self._planned = plans_of(program, registry, gpus)
        self._make_source = make_source
        self._plans: dict[str, RemotePlan] = {}
        self.endpoints = {name: self._endpoint(name) for name in self.workers}
        self.turns.join(messages.MASTER)
        for name, endpoint in self.endpoints.items():
            self.mailboxes[name] = Mailbox(endpoint, lambda: network.clock.now, network.clock.advance)
            self.turns.start(name, partial(self._work, name, endpoint))

    def _endpoint(self, name: str) -> TurnTaking:
        return TurnTaking(self.turns, name, self.program.workers, self.program.servers)

    def _work(self, name: str, endpoint: TurnTaking) -> None:
        """Run the main function of a worker in the calling thread."""
        endpoint.connect(messages.MASTER)
        given = (self.workers, self._make_source, self._registry, self.progress[name])
        worker = Worker(endpoint, self.mailboxes[name], ADDRESS, *given)
        try:
            self.ended[name] = worker.serve(lambda: None)
        except Exception as error:  # noqa: BLE001 - a test inspects the error
            self.ended[name] = error

    def send(self, message: messages.Message, workers: Collection[str] | None = None, *documents: object) -> None:
        """Send a message with its documents to some workers, by default to all."""
        for worker in self.workers if workers is None else workers:
            self.endpoint.send(worker, message, [encode_document(document) for document in documents])

    def receive(self) -> Received:
        """Return the next message to the master; raise NoAnswer if none arrives."""
        received = self.endpoint.receive(PATIENCE_S)
        if received is None:
            raise NoAnswer
        return received

    def answers(self, kind: type[Kind], workers: Collection[str] | None = None) -> dict[str, Kind]:
        """Return one message of a kind from each given worker, by default all; expect no message of another kind."""
        missing = set(self.workers if workers is None else workers)
        answers = {}
        while missing:
            received = self.receive()
            if isinstance(received.message, messages.Failed) and not issubclass(kind, messages.Failed):
                raise WorkerFailed(f"{received.source}: {received.message.error}: {received.message.text}")
            assert isinstance(received.message, kind), f"{received.source} sent {received.message}"
            missing.remove(received.source)
            answers[received.source] = received.message
        return answers

    def greet(self) -> None:
        """Receive the hello of every worker, connect to the workers and send welcome."""
        self.answers(messages.Hello)
        for worker in self.workers:
            self.endpoint.connect(worker)
        self.send(messages.Welcome())

    def set_up(self, check_finite: bool = False, link: EmulatedLink | None = None) -> None:
        """Greet every worker and send its setup."""
        self.greet()
        gpus = dict(zip(self.workers, self._gpus, strict=False))
        self.send(messages.Setup(), None, WorkerSetup({}, check_finite, link, gpus).to_document())

    def load(self, client: str) -> RemotePlan:
        """Load each worker's part of a client's plan, unless the plan is already loaded; return the plan."""
        if client not in self._plans:
            plan = remote_plan(self._planned, client, self._directory, name=client)
            for worker, assignment in plan.assignments.items():
                self.send(messages.Load(client), [worker], assignment.to_document())
            self.answers(messages.Loaded, plan.plans)
            self._plans[client] = plan
        return self._plans[client]

    def run(self, client: str, step: int = 0, feeds: Mapping[str, object] | None = None) -> dict[str, Array]:
        """Run one step of a client and return its fetches."""
        plan = self.load(client)
        self.feed(client, feeds or {})
        self.send(messages.Run(client, step), plan.plans)
        return self.finish(client, step)

    def feed(self, client: str, feeds: Mapping[str, object]) -> None:
        """Copy the feeds of a client into shared memory."""
        values = {name: np.asarray(value) for name, value in feeds.items()}
        self.load(client).feed(expand_feeds(self.program.clients[client], values))

    def finish(self, client: str, step: int) -> dict[str, Array]:
        """Wait until all workers have finished a step; return the fetches."""
        plan = self.load(client)
        for answer in self.answers(messages.Done, plan.plans).values():
            assert (answer.plan, answer.step) == (client, step)
        return {name: plan.fetch(tensor) for name, tensor in self.program.clients[client].fetches.items()}

    def close(self) -> None:
        """Close the arenas of all plans."""
        for plan in self._plans.values():
            plan.close()

    def shut_down(self) -> None:
        """Shut down all workers and wait until they have ended."""
        self.send(messages.Shutdown())
        self.answers(messages.Bye)
        self.wait_for_ends()

    def wait_for_ends(self, workers: Collection[str] | None = None) -> None:
        """Advance the clock until the given workers, by default all, have ended."""
        for worker in self.workers if workers is None else workers:
            while worker not in self.ended:
                self.turns.wait(messages.MASTER, self.network.clock.now + 1.0)
                assert self.network.clock.now < PATIENCE_S, f"{worker} does not end"


@contextmanager
def virtual_cluster(
    program: Program,
    directory: Path,
    registry: Registry,
    make_source: Callable[[Mapping[str, Any]], InputSource],
    *,
    seed: int = 0,
    faults: Faults | None = None,
    gpus: Gpus | None = None,
) -> Iterator[VirtualCluster]:
    """Yield a cluster whose workers have sent hello and nothing else. directory: for arenas. gpus: of the workers."""
    cluster = VirtualCluster(program, directory, registry, make_source, FakeNetwork(seed, faults), seed, gpus)
    try:
        yield cluster
    finally:
        cluster.turns.end()
        cluster.close()
