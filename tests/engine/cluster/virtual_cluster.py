"""Workers in threads on a virtual clock, with a test as the master that sends single messages."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from runner.engine.cluster.emulation import Link
from runner.engine.cluster.mailbox import Mailbox
from runner.engine.cluster.remote_plan import RemotePlan
from runner.engine.cluster.transport.documents import encode_document
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.transport.heartbeat import Progress
from runner.engine.cluster.transport.messages import (
    Bye,
    Done,
    Failed,
    Hello,
    Load,
    Loaded,
    Message,
    Run,
    Setup,
    Shutdown,
    Welcome,
)
from runner.engine.cluster.transport.names import MASTER, process_names
from runner.engine.cluster.worker import Worker
from runner.engine.cluster.worker_setup import WorkerSetup
from runner.engine.compile.program import InputSource, Program
from runner.engine.graph.device import Gpus
from runner.engine.run.session import expand_feeds
from runner.kernels.registry import Registry
from tests.engine.cluster.remote_programs import plans_of, remote_plan
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeNetwork, Faults
from tests.engine.cluster.turns import Turns, TurnTaking

Array = NDArray[Any]
Kind = TypeVar("Kind", bound=Message)

ADDRESS = "ipc:///virtual/master-0"
PATIENCE_S = 10_000.0
"""Virtual seconds after which the master counts a message as lost; longer than any limit of a worker."""


SETUP = WorkerSetup({}, check_finite=False, link=None).to_document()
"""The setup document."""


class NoAnswer(Exception):
    """The awaited message did not arrive."""


class WorkerFailed(Exception):
    """A worker reported a failure while another message was awaited."""


class VirtualCluster:
    """The workers and servers of a program on one network. Used by :func:`virtual_cluster`."""

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
        self.workers = process_names(program.workers, program.servers)
        self.mailboxes: dict[str, Mailbox] = {}
        self.progress = {name: Progress() for name in self.workers}
        self.ended: dict[str, int | Exception] = {}
        self.endpoint = self._endpoint(MASTER)
        self._directory = directory
        self._registry = registry
        self._gpus = () if gpus is None else gpus.of_workers
        self._planned = plans_of(program, registry, gpus)
        self._make_source = make_source
        self._plans: dict[str, RemotePlan] = {}
        self.endpoints = {name: self._endpoint(name) for name in self.workers}
        self.turns.join(MASTER)
        for name, endpoint in self.endpoints.items():
            self.mailboxes[name] = Mailbox(endpoint, lambda: network.clock.now, network.clock.advance)
            self.turns.start(name, partial(self._work, name, endpoint))

    def _endpoint(self, name: str) -> TurnTaking:
        return TurnTaking(self.turns, self.network.endpoint(identity(name), self.program.workers, self.program.servers))

    def _work(self, name: str, endpoint: TurnTaking) -> None:
        """The main function of a worker, in a thread."""
        endpoint.connect(MASTER)
        worker = Worker(
            endpoint,
            self.mailboxes[name],
            ADDRESS,
            self.workers,
            self._make_source,
            self._registry,
            self.progress[name],
        )
        try:
            self.ended[name] = worker.serve(lambda: None)
        except Exception as error:  # noqa: BLE001 - a test looks at it
            self.ended[name] = error

    def send(self, message: Message, workers: Collection[str] | None = None, *documents: object) -> None:
        """Send a message to some workers, by default to all."""
        for worker in self.workers if workers is None else workers:
            self.endpoint.send(worker, message, [encode_document(document) for document in documents])

    def receive(self) -> Received:
        """The next message to the master."""
        received = self.endpoint.receive(PATIENCE_S)
        if received is None:
            raise NoAnswer
        return received

    def answers(self, kind: type[Kind], workers: Collection[str] | None = None) -> dict[str, Kind]:
        """One message of a kind from each of some or all workers; no other may arrive."""
        missing = set(self.workers if workers is None else workers)
        answers = {}
        while missing:
            received = self.receive()
            if isinstance(received.message, Failed) and not issubclass(kind, Failed):
                raise WorkerFailed(f"{received.source}: {received.message.traceback}")
            assert isinstance(received.message, kind), f"{received.source} sent {received.message}"
            missing.remove(received.source)
            answers[received.source] = received.message
        return answers

    def greet(self) -> None:
        """Receive the hello of every worker and answer."""
        self.answers(Hello)
        for worker in self.workers:
            self.endpoint.connect(worker)
        self.send(Welcome())

    def set_up(self, check_finite: bool = False, link: Link | None = None) -> None:
        """Join and set up every worker."""
        self.greet()
        gpus = dict(zip(self.workers, self._gpus, strict=False))
        self.send(Setup(), None, WorkerSetup({}, check_finite, link, gpus).to_document())

    def load(self, client: str) -> RemotePlan:
        """Load the parts of a client, once."""
        if client not in self._plans:
            plan = remote_plan(self._planned, client, self._directory, name=client)
            for worker, assignment in plan.assignments.items():
                self.send(Load(client), [worker], assignment.to_document())
            self.answers(Loaded, plan.plans)
            plan.unlink()
            self._plans[client] = plan
        return self._plans[client]

    def run(self, client: str, step: int = 0, feeds: Mapping[str, object] | None = None) -> dict[str, Array]:
        """Run one step."""
        plan = self.load(client)
        self.feed(client, feeds or {})
        self.send(Run(client, step), plan.plans)
        return self.finish(client, step)

    def feed(self, client: str, feeds: Mapping[str, object]) -> None:
        """Copy the feeds of a client into shared memory."""
        values = {name: np.asarray(value) for name, value in feeds.items()}
        self.load(client).feed(expand_feeds(self.program.clients[client], values))

    def finish(self, client: str, step: int) -> dict[str, Array]:
        """Wait until a step has finished, and fetch."""
        plan = self.load(client)
        for answer in self.answers(Done, plan.plans).values():
            assert (answer.plan, answer.step) == (client, step)
        return {name: plan.fetch(tensor) for name, tensor in self.program.clients[client].fetches.items()}

    def shut_down(self) -> None:
        """Shut down all workers."""
        self.send(Shutdown())
        self.answers(Bye)
        self.wait_for_ends()

    def wait_for_ends(self, workers: Collection[str] | None = None) -> None:
        """Advance the clock until workers have ended."""
        for worker in self.workers if workers is None else workers:
            while worker not in self.ended:
                self.turns.wait(MASTER, self.network.clock.now + 1.0)
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
    """Workers of a program that have only sent hello. directory: of arenas. gpus: of workers."""
    cluster = VirtualCluster(program, directory, registry, make_source, FakeNetwork(seed, faults), seed, gpus)
    try:
        yield cluster
    finally:
        cluster.turns.end()
