"""The launch queue on a virtual clock: order and time limit."""

import pytest

from runner.engine.cluster.launch_queue import LaunchQueue, QueuedLaunch
from runner.engine.cluster.mailbox import RECEIVE_LIMIT_S, WAIT_S
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.transport.messages import Launch, Welcome
from runner.errors import ClusterError
from tests.engine.cluster.test_mailbox import Inbox


@pytest.fixture
def inbox() -> Inbox:
    """An inbox that expects ``a`` from worker 1 and ``b`` from worker 2 and has read the three hellos."""
    inbox = Inbox()
    inbox.mailbox.expect("p", {"b": "worker-2"})
    inbox.read(3)
    return inbox


def launched(inbox: Inbox, *received: str, delay_s: float = 0.0) -> QueuedLaunch:
    return QueuedLaunch(Launch("p", 3, delay_s), frozenset(received), inbox.clock.now)


def test_ready_steps_begin_in_launch_order(inbox: Inbox) -> None:
    steps = LaunchQueue(inbox.mailbox)
    waits, first, second = launched(inbox, "a"), launched(inbox), launched(inbox)
    for each in (waits, first, second):
        steps.add(each)
    assert steps.first() == (first, 0.0)
    assert steps.begin(first) == (0.0, 0)
    assert steps.begin(second) == (0.0, 1)
    assert steps.first() == (None, WAIT_S)
    inbox.tensor(step=3, due=0.5)
    inbox.read(1)
    assert steps.first() == (waits, 0.5)


def test_delay_begins_when_the_message_is_read(inbox: Inbox) -> None:
    steps = LaunchQueue(inbox.mailbox)
    for step in (launched(inbox, delay_s=5.0), launched(inbox, delay_s=1.0)):
        steps.add(step)
    inbox.clock.advance_to(2.0)
    assert steps.begin(steps.first()[0] or step) == (3.0, 0)
    assert steps.begin(steps.first()[0] or step) == (0.0, 1)


def test_step_beyond_the_limit_names_missing_tensors(inbox: Inbox) -> None:
    steps = LaunchQueue(inbox.mailbox)
    steps.add(launched(inbox, "b", "a"))
    while inbox.clock.now < RECEIVE_LIMIT_S:
        assert steps.first() == (None, WAIT_S)
        inbox.read(1)
    inbox.read(1)
    expected = r"^step 3 of plan 'p': 'a' from worker-1, 'b' from worker-2 did not arrive within 600 s of its launch$"
    with pytest.raises(ClusterError, match=expected):
        steps.first()


def test_unread_tensor_is_not_late(inbox: Inbox) -> None:
    """A worker that is busy with other steps reads no messages."""
    steps = LaunchQueue(inbox.mailbox)
    step = launched(inbox, "a", "b")
    steps.add(step)
    for source, key in enumerate("ab", 1):
        inbox.tensor(step=3, key=key, source=source)
    inbox.clock.advance_to(2 * RECEIVE_LIMIT_S)
    inbox.send(Launch("p", 4))
    assert steps.first() == (step, 0.0)
    assert inbox.read(1) == [Launch("p", 4)]


def test_limit_holds_while_messages_are_always_waiting(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = LaunchQueue(inbox.mailbox)
    steps.add(launched(inbox, "a"))
    endpoint = inbox.mailbox._endpoint
    receive = endpoint.receive

    def read(timeout_s: float) -> Received | None:
        """A message is always waiting and takes a second to read."""
        inbox.clock.advance(1.0)
        inbox.send(Welcome())
        return receive(timeout_s)

    monkeypatch.setattr(endpoint, "receive", read)
    while inbox.clock.now < RECEIVE_LIMIT_S:
        assert steps.first() == (None, WAIT_S)
        inbox.read(1)
    inbox.read(1)
    with pytest.raises(ClusterError, match=r"^step 3 of plan 'p': 'a' from worker-1 did not arrive within 600 s"):
        steps.first()


def test_limit_restarts_after_the_worker_was_stopped(inbox: Inbox) -> None:
    steps = LaunchQueue(inbox.mailbox)
    steps.add(launched(inbox, "a"))
    inbox.clock.advance(2 * RECEIVE_LIMIT_S)
    inbox.read(1)
    assert steps.first() == (None, WAIT_S)
    while inbox.clock.now < 3 * RECEIVE_LIMIT_S:
        inbox.read(1)
        assert steps.first() == (None, WAIT_S)
    inbox.read(2)
    with pytest.raises(ClusterError, match="did not arrive within 600 s of its launch"):
        steps.first()
