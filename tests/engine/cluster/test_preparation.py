"""The preparation of a spare process: it uses the documents of another process, and keeps an input source."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.engine.cluster.preparation import Preparation
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.encoding import encode_document
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.worker_setup import WorkerSetup
from runner.errors import SecurityError
from runner.kernels.contract import Bound, Kernel
from runner.kernels.registry import Registry
from tests.engine.cluster.virtual_cluster import plans_of, remote_plan, there_and_back

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


def test_kernels_of_a_plan_are_bound(registry: Registry, tmp_path: Path) -> None:
    bound: list[str] = []
    counted = registry.copy()
    counted._kernels = {key: [counting(each, bound) for each in found] for key, found in registry._kernels.items()}
    assignment = remote_plan(plans_of(there_and_back(), registry), "run", tmp_path).assignments["worker-0"]
    Preparation(Source, counted).handle(received(messages.Load("run-0"), assignment.to_document()))
    computed = [each.op for each in assignment.plan.instructions if each.op not in ("assign", "send", "recv")]
    assert bound == computed != []


@pytest.mark.parametrize("message", [messages.Setup(), messages.Load("run-0"), messages.Run("run-0", 0)])
def test_other_documents_and_messages_are_refused(message: messages.Message, registry: Registry) -> None:
    with pytest.raises(SecurityError):
        Preparation(Source, registry).handle(received(message, {"unknown": 1}))
