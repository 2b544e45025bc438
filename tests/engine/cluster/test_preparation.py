"""The preparation of a spare process: it uses the documents of another process, and keeps an input source."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.engine.cluster.assignment import Assignment
from runner.engine.cluster.loaded_plan import LoadedPlan
from runner.engine.cluster.mailbox import Mailbox, Request
from runner.engine.cluster.preparation import Preparation
from runner.engine.cluster.remote_plan import RemotePlan
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.encoding import encode_document
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.transport.heartbeat import Progress
from runner.engine.cluster.worker import Worker
from runner.engine.cluster.worker_setup import WorkerSetup
from runner.errors import SecurityError
from runner.kernels.contract import Bound, Kernel
from runner.kernels.registry import Registry
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeNetwork
from tests.engine.cluster.virtual_cluster import ADDRESS, plans_of, remote_plan, there_and_back

DESCRIPTION = {"seed": 1}


class Source:
    """An input source that can be closed."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.description = description
        self.closed = 0

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, Any]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1


def received(message: messages.Message, document: object) -> Received:
    return Received(messages.MASTER, message, (memoryview(encode_document(document)),))


def load(plan: RemotePlan, worker: str) -> Received:
    return Received(messages.MASTER, messages.Load("run-0"), (memoryview(plan.document(worker)),))


def handle_setup(preparation: Preparation, source: Mapping[str, Any] | None) -> None:
    preparation.handle(received(messages.Setup(), WorkerSetup(source, check_finite=False, link=None).to_document()))


def test_source_is_made_in_advance_and_given_to_one_worker(registry: Registry) -> None:
    made: list[Source] = []

    def make(description: Mapping[str, Any]) -> Source:
        made.append(Source(description))
        return made[-1]

    preparation = Preparation(make, registry)
    handle_setup(preparation, DESCRIPTION)
    assert [each.description for each in made] == [DESCRIPTION]
    assert preparation.source(DESCRIPTION) is made[0]
    preparation.close()
    assert made[0].closed == 0, "the worker closes it"
    assert preparation.source(DESCRIPTION) is made[1]


def test_unused_source_is_closed(registry: Registry) -> None:
    source = Source(DESCRIPTION)
    preparation = Preparation(lambda description: source, registry)
    handle_setup(preparation, None)
    preparation.close()
    assert source.closed == 0
    handle_setup(preparation, DESCRIPTION)
    preparation.close()
    preparation.close()
    assert source.closed == 1


def counting(kernel: Kernel, bound: list[str]) -> Kernel:
    """Return a kernel that notes its op whenever it is bound."""

    def bind(*arguments: Any) -> Bound:
        bound.append(kernel.op)
        return kernel.bind(*arguments)

    return replace(kernel, bind=bind)


@pytest.fixture
def bound() -> list[str]:
    """Return the ops of the kernels of ``counted`` that were bound."""
    return []


@pytest.fixture
def counted(registry: Registry, bound: list[str]) -> Registry:
    copied = registry.copy()
    copied._kernels = {key: [counting(each, bound) for each in found] for key, found in registry._kernels.items()}
    return copied


def test_kernels_of_a_plan_are_bound_once(counted: Registry, bound: list[str], tmp_path: Path) -> None:
    plan = remote_plan(plans_of(there_and_back(), counted), "run", tmp_path)
    preparation = Preparation(Source, counted)
    for worker in plan.plans:
        preparation.handle(load(plan, worker))
    computed = [each.op for each in plan.plans["worker-0"].instructions if each.op not in ("assign", "send", "recv")]
    assert bound == computed != []


def test_code_of_matrix_products_is_generated(counted: Registry, bound: list[str]) -> None:
    handle_setup(Preparation(Source, counted), None)
    assert bound == ["matmul"]


def test_worker_uses_the_assignments_that_were_decoded_in_advance(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = remote_plan(plans_of(there_and_back(), registry), "run", tmp_path)
    preparation, network = Preparation(Source, registry), FakeNetwork()
    for name in plan.plans:
        preparation.handle(load(plan, name))
    prepared = preparation.assignments[plan.document("worker-1")]
    monkeypatch.setattr(Assignment, "from_document", None)  # a call would raise TypeError
    endpoint = network.endpoint(identity("worker-1"), peers=2)
    for name in (messages.MASTER, "worker-0"):
        network.endpoint(identity(name), peers=2)
    endpoint.connect(messages.MASTER)
    given = (ADDRESS, list(plan.plans), Source, registry, Progress())
    worker = Worker(endpoint, Mailbox(endpoint), *given, decoded=preparation.assignments)
    setup = WorkerSetup(None, check_finite=False, link=None).to_document()
    for message in (received(messages.Setup(), setup), load(plan, "worker-1")):
        worker._answer(Request(message, 0.0))
    assert worker._plans["run-0"].assignment is prepared
    assert list(worker.decoded) == [plan.document("worker-0")]
    monkeypatch.setattr(LoadedPlan, "run", lambda *step: None)
    worker._answer(Request(Received(messages.MASTER, messages.Run("run-0", 0)), 0.0))
    assert worker.decoded == {}, "the assignments of other workers take memory"


@pytest.mark.parametrize("message", [messages.Setup(), messages.Load("run-0"), messages.Run("run-0", 0)])
def test_other_documents_and_messages_are_refused(message: messages.Message, registry: Registry) -> None:
    with pytest.raises(SecurityError):
        Preparation(Source, registry).handle(received(message, {"unknown": 1}))
