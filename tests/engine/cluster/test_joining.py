"""Processes that join in place of lost ones, on a virtual clock."""

import pytest

from runner.engine.cluster.joining import MEMORY
from runner.engine.cluster.transport.messages import MASTER, Abandoned, Moved
from runner.errors import NotStartedAgainError
from tests.engine.cluster.stage import Stage
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeEndpoint


def joins_again(stage: Stage, facts: dict[str, str], own_address: str) -> FakeEndpoint:
    """Replace worker-1 in epoch 2; return the endpoint of its new process, whose hello is on the wire."""
    stage.peers["worker-0"].advance(2)  # type: ignore[attr-defined]
    stage.send("worker-0", Abandoned())
    assert stage.group.replace("worker-1", 2) == ["worker-1"]
    stage.heard("worker-0")
    new = stage.network.endpoint(identity("worker-1", epoch=2), peers=2)
    new.connect(MASTER, facts=facts, own_address=own_address)
    return new


def test_others_learn_the_address_of_a_replacement(elsewhere: Stage) -> None:
    new = joins_again(elsewhere, {}, "tcp://10.0.0.9:5")
    elsewhere.group.set_up(lambda addresses: b"", ["worker-1"])
    received = elsewhere.peers["worker-0"].receive(0)
    assert received is not None
    assert received.message == Moved({"worker-1": "tcp://10.0.0.9:5"})
    assert [each.message.kind for each in (new.receive(0), new.receive(0), new.receive(0)) if each] == [
        *("hello", "welcome", "setup")
    ]


def test_worker_whose_plans_are_in_shared_memory_is_not_replaced_from_another_host(elsewhere: Stage) -> None:
    """Nobody else joins in time. Its loss leaves one worker."""
    joins_again(elsewhere, {MEMORY: "of another host"}, "tcp://10.0.0.9:5")
    with pytest.raises(NotStartedAgainError, match="no 'hello' from worker-1 within 60 s") as caught:
        elsewhere.group.set_up(lambda addresses: b"", ["worker-1"])
    assert caught.value.remaining == 1
    ((refused, reason),) = elsewhere.group.endpoint.refusals  # type: ignore[attr-defined]
    assert refused == "worker-1"
    assert reason == "worker-1 was on the host of the run and shared memory with it; start it there"
