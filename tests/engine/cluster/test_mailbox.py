"""The mailbox on a virtual clock: early tensors are stored, and unexpected messages are refused."""

from collections.abc import Callable

import pytest

from runner.engine.cluster.mailbox import (
    RECEIVE_LIMIT_S,
    WAIT_S,
    LaunchQueue,
    Mailbox,
    QueuedLaunch,
    StepAbandoned,
    Stopped,
)
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.endpoint import Received
from runner.errors import ClusterError, SecurityError
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeEndpoint, FakeNetwork, Faults


class Inbox:
    """The mailbox of worker 0, which expects tensor ``a`` from worker 1, and the endpoints of the senders."""

    def __init__(self, delay_s: float = 0.0, longest_s: float | None = None) -> None:
        """Delay each message by ``delay_s`` seconds or, if ``longest_s`` is given, by a random time between the two."""
        self.network = FakeNetwork(faults=Faults(delay_s=(delay_s, longest_s or delay_s)))
        self.clock = self.network.clock
        self.own = self.network.endpoint(identity("worker-0"), peers=3)
        self.mailbox = Mailbox(self.own, lambda: self.clock.now, self.clock.advance)
        self.mailbox.expect("p", {"a": "worker-1"})
        self._peers = {name: self._peer(name) for name in ("master-0", "worker-1", "worker-2")}

    def _peer(self, name: str) -> FakeEndpoint:
        endpoint = self.network.endpoint(identity(name), peers=3)
        endpoint.connect("worker-0")
        return endpoint

    def tensor(self, *keys: str, step: int = 0, plan: str = "p", source: int = 1, due: float = 0.0) -> None:
        """Announce tensors; without keys, announce ``a``."""
        self._peers[f"worker-{source}"].send("worker-0", messages.TensorsReady(plan, step, keys or ("a",), due))

    def send(self, *sent: messages.Message) -> None:
        for message in sent:
            self._peers["master-0"].send("worker-0", message, [b"plans"] if message.has_document else [])

    def read(self, reads: int = 9) -> list[messages.Message]:
        """Try to read ``reads`` messages and return the requests among them."""
        received = [self.mailbox.next(1.0) for _ in range(reads)]
        return [each.received.message for each in received if each is not None]

    def take(self, step: int = 0) -> None:
        """Receive the tensor ``a``."""
        self.mailbox.take("p", step, "a")


def test_early_tensors_are_stored_until_their_step_receives_them() -> None:
    inbox = Inbox()
    for step in range(3):
        inbox.tensor(step=step)
        inbox.send(messages.Run("p", step))
        assert inbox.read() == [messages.Run("p", step)]
        assert sorted(inbox.mailbox._tensors) == [("p", "a")]
        inbox.take(step)
        assert not inbox.mailbox._tensors


@pytest.mark.parametrize("due", [0.0004, 0.001, 0.0123, 7.5, 150.0])
def test_tensor_is_not_delivered_before_it_is_due(due: float) -> None:
    inbox = Inbox()
    inbox.tensor(due=due)
    inbox.take()
    assert inbox.clock.now == pytest.approx(due, rel=1e-12)
    assert inbox.clock.now >= due
    inbox.tensor(due=due)
    inbox.clock.advance_to(190.0)
    inbox.take()
    assert inbox.clock.now == 190.0, "an overdue tensor is delivered immediately"


def test_other_tensors_are_stored_while_waiting() -> None:
    inbox = Inbox(delay_s=1.0)
    inbox.mailbox.expect("p", {"b": "worker-2"})
    inbox.mailbox.expect("q", {"a": "worker-1"})
    inbox.tensor(due=5.0)
    inbox.tensor(plan="q")
    inbox.clock.advance_to(2.0)
    inbox.tensor("b", source=2, due=9.0)
    inbox.take()
    assert sorted(inbox.mailbox._tensors) == [("p", "b"), ("q", "a")]
    assert inbox.clock.now == 5.0


def test_shutdown_ends_a_wait_until_a_tensor_is_due() -> None:
    inbox = Inbox(delay_s=1.0)
    inbox.tensor(due=5.0)
    inbox.send(messages.Shutdown())
    with pytest.raises(Stopped):
        inbox.take()
    assert inbox.clock.now == 1.0


def test_messages_during_a_delay_are_stored_in_order() -> None:
    inbox = Inbox(delay_s=1.0)
    inbox.tensor(step=4)
    inbox.send(messages.StartTrace(), messages.Launch("q", 1), messages.StopTrace(), messages.Run("r", 1))
    inbox.mailbox.wait(2.5, step=4)
    assert inbox.clock.now == 2.5
    assert sorted(inbox.mailbox._tensors) == [("p", "a")]
    inbox.send(messages.Welcome(), messages.Launch("s", 1))
    request = inbox.mailbox.next(0.0)
    assert request is not None
    assert (request.received.message, request.read_at) == (messages.StartTrace(), 1.0)
    rest = [messages.Launch("q", 1), messages.StopTrace(), messages.Run("r", 1), messages.Launch("s", 1)]
    assert inbox.read() == rest


def test_a_new_address_outlasts_the_interrupted_step_in_which_it_arrived() -> None:
    inbox, moved = Inbox(delay_s=1.0), messages.Moved({"worker-2": "tcp://10.0.0.9:5"})
    inbox.send(messages.Launch("q", 1), moved, messages.Abandon(2, ("worker-1",)))
    with pytest.raises(StepAbandoned):
        inbox.take()
    inbox.mailbox.clear()
    assert inbox.read() == [moved]


def test_missing_and_due_tensors_are_reported() -> None:
    inbox = Inbox()
    inbox.mailbox.expect("p", {"b": "worker-2"})
    assert inbox.mailbox.due("p", ()) == 0.0
    inbox.tensor(due=7.0)
    inbox.read()
    assert inbox.mailbox.due("p", ("a",)) == 7.0
    assert inbox.mailbox.due("p", ("a", "b")) is None
    assert inbox.mailbox.missing("p", ("a", "b")) == {"b": "worker-2"}
    inbox.tensor("b", source=2, due=3.0)
    inbox.read()
    assert inbox.mailbox.due("p", ("a", "b")) == 7.0


Action = Callable[[Inbox], object]
READ: Action = Inbox.read
TAKE: Action = Inbox.take
LOAD: Action = lambda inbox: inbox.send(messages.Load("q"))  # noqa: E731 - a row of the table below
STEP_0 = "tensor a of plan p, step 0 from"


@pytest.mark.parametrize(
    ("send", "receive", "expected"),
    [
        *(
            (lambda inbox, keys=keys, sent=sent: inbox.tensor(*keys, **sent), receive, expected)  # type: ignore[misc]
            for keys, sent, expected in (
                ((), {"source": 2}, f"{STEP_0} worker-2: expected the tensor from worker-1"),
                (
                    ("a", "\x1b[2J"),
                    {},
                    r"tensor \\x1b\[2J of plan p, step 0 from worker-1: no loaded plan receives this tensor",
                ),
                ((), {"plan": "q"}, "tensor a of plan q, step 0 from worker-1: no loaded plan receives this tensor"),
                ((), {"due": messages.LONGEST_WAIT_S + 1}, f"{STEP_0} worker-1: due in 201 s, expected at most 200"),
            )
            for receive in (READ, TAKE)
        ),
        (lambda i: i.tensor("a", "a"), READ, f"{STEP_0} worker-1: the previous tensor has not been used yet"),
        (lambda i: (i.tensor(), i.tensor()), READ, f"{STEP_0} worker-1: the previous tensor has not been used yet"),
        (lambda i: (i.tensor(), i.tensor(step=1)), READ, "step 1 from worker-1: the previous tensor has not been"),
        (lambda i: i.tensor(step=4), lambda i: i.take(5), "'a' from worker-1 is for step 4, expected step 5"),
        (
            LOAD,
            TAKE,
            "'load' from master-0: unexpected message during step 0, while waiting for tensor 'a' from worker-1",
        ),
        (LOAD, lambda i: i.mailbox.wait(2.5, 4), "during step 4, while delaying the step as an emulated slow worker"),
    ],
)
def test_unexpected_message_is_refused(send: Action, receive: Action, expected: str) -> None:
    inbox = Inbox()
    send(inbox)
    with pytest.raises(SecurityError, match=expected):
        receive(inbox)


@pytest.mark.parametrize("others", [0, 3])
def test_missing_tensor_is_reported_after_the_limit(others: int) -> None:
    inbox = Inbox(0.0, longest_s=2 * RECEIVE_LIMIT_S)
    for other in range(others):
        inbox.mailbox.expect("q", {str(other): "worker-2"})
        inbox.tensor(str(other), plan="q", source=2)
    with pytest.raises(ClusterError, match="step 7: tensor 'a' did not arrive from worker-1 within 600 s"):
        inbox.take(step=7)
    assert RECEIVE_LIMIT_S < inbox.clock.now < RECEIVE_LIMIT_S + 2


def test_limit_restarts_after_the_worker_was_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox()
    endpoint = inbox.mailbox._endpoint
    receive = endpoint.receive

    def wait(timeout_s: float) -> Received | None:
        """Simulate that both processes were suspended and that the sender continues five seconds after the worker."""
        monkeypatch.setattr(endpoint, "receive", receive)
        inbox.clock.advance(2 * RECEIVE_LIMIT_S)
        inbox.network.faults = Faults(delay_s=(5.0, 5.0))
        inbox.tensor()
        return None

    monkeypatch.setattr(endpoint, "receive", wait)
    inbox.take()
    assert inbox.clock.now > 2 * RECEIVE_LIMIT_S


@pytest.fixture
def inbox() -> Inbox:
    """Return an inbox that expects ``a`` from worker 1 and ``b`` from worker 2; its hello messages have been read."""
    inbox = Inbox()
    inbox.mailbox.expect("p", {"b": "worker-2"})
    inbox.read(3)
    return inbox


@pytest.fixture
def queue(inbox: Inbox) -> LaunchQueue:
    return LaunchQueue(inbox.mailbox)


def launch(queue: LaunchQueue, *received: str) -> QueuedLaunch:
    """Add to the queue a launched step that receives the given tensors; return the queued step."""
    queue.waiting.append(QueuedLaunch(messages.Launch("p", 3), frozenset(received), queue._mailbox.clock()))
    return queue.waiting[-1]


@pytest.mark.parametrize("always_waiting", [False, True])
def test_step_beyond_the_limit_names_missing_tensors(
    inbox: Inbox, queue: LaunchQueue, monkeypatch: pytest.MonkeyPatch, always_waiting: bool
) -> None:
    """always_waiting: whether a message is always waiting and takes one second to read."""
    launch(queue, "b", "a")
    endpoint = inbox.mailbox._endpoint
    receive = endpoint.receive

    def read(timeout_s: float) -> Received | None:
        inbox.clock.advance(1.0)
        inbox.send(messages.Welcome())
        return receive(timeout_s)

    if always_waiting:
        monkeypatch.setattr(endpoint, "receive", read)
    while inbox.clock.now < RECEIVE_LIMIT_S:
        assert queue.first() == (None, WAIT_S)
        inbox.read(1)
    inbox.read(1)
    expected = r"^step 3 of plan 'p': 'a' from worker-1, 'b' from worker-2 did not arrive within 600 s of the launch$"
    with pytest.raises(ClusterError, match=expected):
        queue.first()


def test_tensor_that_arrived_but_was_not_read_is_not_late(inbox: Inbox, queue: LaunchQueue) -> None:
    """A worker reads no messages while it runs other steps."""
    step = launch(queue, "a", "b")
    for source, key in enumerate("ab", 1):
        inbox.tensor(key, step=3, source=source)
    inbox.clock.advance_to(2 * RECEIVE_LIMIT_S)
    inbox.send(messages.Launch("p", 4))
    assert queue.first() == (step, 0.0)
    assert inbox.read(1) == [messages.Launch("p", 4)]


def test_limit_of_a_launch_restarts_after_the_worker_was_suspended(inbox: Inbox, queue: LaunchQueue) -> None:
    launch(queue, "a")
    inbox.clock.advance(2 * RECEIVE_LIMIT_S)
    inbox.read(1)
    assert queue.first() == (None, WAIT_S)
    while inbox.clock.now < 3 * RECEIVE_LIMIT_S:
        inbox.read(1)
        assert queue.first() == (None, WAIT_S)
    inbox.read(2)
    with pytest.raises(ClusterError, match="did not arrive within 600 s of the launch"):
        queue.first()


def test_closed_connection_ends_a_step() -> None:
    inbox = Inbox()
    inbox.own.connect("worker-1")
    inbox.network.kill("worker-1")
    with pytest.raises(ClusterError, match=r"^worker-0 has lost its connection to worker-1$"):
        inbox.take()
    assert inbox.clock.now <= 3 * WAIT_S


def test_closed_connection_is_an_error_when_it_is_checked() -> None:
    inbox = Inbox()
    inbox.own.connect("worker-1")
    inbox.network.kill("worker-1")
    assert inbox.read() == [], "a worker that waits for a recovery expects closed connections"
    inbox.mailbox.check_connections()
    inbox.clock.advance(WAIT_S)
    with pytest.raises(ClusterError, match=r"^worker-0 has lost its connection to worker-1$"):
        inbox.mailbox.check_connections()
