"""The mailbox on a virtual clock: early tensors are stored, and unexpected messages are refused."""

from collections.abc import Callable

import pytest

from runner.engine.cluster.mailbox import RECEIVE_LIMIT_S, WAIT_S, LaunchQueue, Mailbox, QueuedLaunch, Stopped
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.transport.shared_memory import ArenaTensor
from runner.errors import ClusterError, SecurityError
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeEndpoint, FakeNetwork, Faults


class Inbox:
    """The mailbox of worker 0, which expects tensor ``a`` from worker 1, and its possible senders."""

    def __init__(self, delay_s: float = 0.0, longest_s: float | None = None) -> None:
        """Messages take ``delay_s`` seconds, or up to ``longest_s``."""
        self.network = FakeNetwork(faults=Faults(delay_s=(delay_s, longest_s or delay_s)))
        self.clock = self.network.clock
        own = self.network.endpoint(identity("worker-0"), peers=3)
        self.mailbox = Mailbox(own, lambda: self.clock.now, self.clock.advance)
        self.mailbox.expect("p", {"a": "worker-1"})
        self._peers = {name: self._peer(name) for name in ("master-0", "worker-1", "worker-2")}

    def _peer(self, name: str) -> FakeEndpoint:
        endpoint = self.network.endpoint(identity(name), peers=3)
        endpoint.connect("worker-0")
        return endpoint

    def tensor(
        self, number: int = 0, *, step: int = 0, plan: str = "p", key: str = "a", source: int = 1, due: float = 0.0
    ) -> None:
        """Send a tensor; its offset in the sender's arena is ``number``."""
        reference = ArenaTensor("uint8", (1,), "arena", number, 1, 1)
        self._peers[f"worker-{source}"].send("worker-0", messages.TensorReady(plan, step, key, reference, due))

    def send(self, *sent: messages.Message) -> None:
        for message in sent:
            self._peers["master-0"].send("worker-0", message, [b"plans"] if message.has_document else [])

    def read(self, reads: int = 9) -> list[messages.Message]:
        """The requests among the next messages."""
        received = [self.mailbox.next(1.0) for _ in range(reads)]
        return [each.received.message for each in received if each is not None]

    def take(self, step: int = 0) -> int:
        """The number of the tensor ``a``."""
        return self.mailbox.tensor("p", step, "a").offset


def test_early_tensors_are_stored_until_their_step_receives_them() -> None:
    inbox = Inbox()
    for step in range(3):
        inbox.tensor(step + 7, step=step)
        inbox.send(messages.Run("p", step))
        assert inbox.read() == [messages.Run("p", step)]
        assert inbox.mailbox.pending == [("p", "a")]
        assert inbox.take(step) == step + 7
        assert inbox.mailbox.pending == []


def test_waiting_for_a_tensor_advances_the_clock() -> None:
    inbox = Inbox(delay_s=200.0)
    inbox.tensor(3)
    assert (inbox.take(), inbox.clock.now) == (3, 200.0)


@pytest.mark.parametrize("due", [0.0004, 0.001, 0.0123, 7.5, 150.0])
def test_tensor_is_not_delivered_before_it_is_due(due: float) -> None:
    inbox = Inbox()
    inbox.tensor(due=due)
    inbox.take()
    assert inbox.clock.now == pytest.approx(due, rel=1e-12)
    assert inbox.clock.now >= due


def test_overdue_tensor_is_delivered_at_once() -> None:
    inbox = Inbox()
    inbox.tensor(due=7.5)
    inbox.clock.advance_to(9.0)
    inbox.take()
    assert inbox.clock.now == 9.0


def test_other_tensors_are_stored_while_waiting() -> None:
    inbox = Inbox(delay_s=1.0)
    inbox.mailbox.expect("p", {"b": "worker-2"})
    inbox.mailbox.expect("q", {"a": "worker-1"})
    inbox.tensor(1, due=5.0)
    inbox.tensor(2, plan="q")
    inbox.clock.advance_to(2.0)
    inbox.tensor(3, key="b", source=2, due=9.0)
    assert inbox.take() == 1
    assert inbox.mailbox.pending == [("p", "b"), ("q", "a")]
    assert inbox.clock.now == 5.0


@pytest.mark.parametrize("due", [None, 5.0])
def test_shutdown_ends_a_wait(due: float | None) -> None:
    inbox = Inbox(delay_s=1.0)
    if due is not None:
        inbox.tensor(due=due)
    inbox.send(messages.Shutdown())
    with pytest.raises(Stopped):
        inbox.take()
    assert inbox.clock.now == 1.0


def test_tensors_are_stored_during_a_delay() -> None:
    inbox = Inbox(delay_s=1.0)
    inbox.tensor(step=4)
    inbox.mailbox.wait(2.5, step=4)
    assert inbox.clock.now == 2.5
    assert inbox.mailbox.pending == [("p", "a")]


def test_launches_and_traces_during_a_delay_are_queued_in_order() -> None:
    inbox = Inbox(delay_s=1.0)
    inbox.send(messages.StartTrace(), messages.Launch("q", 1), messages.StopTrace(), messages.Launch("r", 1))
    inbox.mailbox.wait(2.5, step=4)
    inbox.send(messages.Launch("s", 1))
    request = inbox.mailbox.next(0.0)
    assert request is not None
    assert (request.received.message, request.read_at) == (messages.StartTrace(), 1.0)
    assert inbox.read() == [
        messages.Launch("q", 1),
        messages.StopTrace(),
        messages.Launch("r", 1),
        messages.Launch("s", 1),
    ]


def test_missing_and_due_tensors_are_reported() -> None:
    inbox = Inbox()
    inbox.mailbox.expect("p", {"b": "worker-2"})
    assert inbox.mailbox.due("p", ()) == 0.0
    inbox.tensor(due=7.0)
    inbox.read()
    assert inbox.mailbox.due("p", ("a",)) == 7.0
    assert inbox.mailbox.due("p", ("a", "b")) is None
    assert inbox.mailbox.missing("p", ("a", "b")) == {"b": "worker-2"}
    inbox.tensor(key="b", source=2, due=3.0)
    inbox.read()
    assert inbox.mailbox.due("p", ("a", "b")) == 7.0


def test_hello_and_welcome_are_ignored() -> None:
    inbox = Inbox()
    inbox.send(messages.Welcome())
    assert inbox.read() == []


Action = Callable[[Inbox], object]
READ: Action = Inbox.read
TAKE: Action = Inbox.take
STEP_0 = "tensor a of plan p, step 0 from"


@pytest.mark.parametrize(
    ("send", "receive", "expected"),
    [
        *(
            (lambda inbox, sent=sent: inbox.tensor(**sent), receive, expected)  # type: ignore[misc]
            for sent, expected in (
                ({"source": 2}, f"{STEP_0} worker-2: expected from worker-1"),
                ({"key": "\x1b[2J"}, r"tensor \\x1b\[2J of plan p, step 0 from worker-1: no loaded plan receives it"),
                ({"plan": "q"}, "tensor a of plan q, step 0 from worker-1: no loaded plan receives it"),
                ({"due": messages.LONGEST_WAIT_S + 1}, f"{STEP_0} worker-1: due in 201 s, expected at most 200"),
            )
            for receive in (READ, TAKE)
        ),
        (lambda i: (i.tensor(), i.tensor()), READ, f"{STEP_0} worker-1: the previous one has not been received yet"),
        (
            lambda i: (i.tensor(), i.tensor(step=1)),
            READ,
            "step 1 from worker-1: the previous one has not been received",
        ),
        (lambda i: i.tensor(step=4), lambda i: i.take(5), "'a' from worker-1 is for step 4, expected step 5"),
        (
            lambda i: i.send(messages.Run("q", 1)),
            TAKE,
            "'run' from master-0 arrived during step 0, while 'a' was awaited from wo",
        ),
        (
            lambda i: i.send(messages.Run("q", 1)),
            lambda i: i.mailbox.wait(2.5, 4),
            "arrived during step 4, while it was delayed",
        ),
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
        inbox.tensor(plan="q", key=str(other), source=2)
    with pytest.raises(ClusterError, match="step 7: 'a' did not arrive from worker-1 within 600 s"):
        inbox.take(step=7)
    assert RECEIVE_LIMIT_S < inbox.clock.now < RECEIVE_LIMIT_S + 2


def test_limit_restarts_after_the_worker_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox()
    endpoint = inbox.mailbox._endpoint
    receive = endpoint.receive

    def wait(timeout_s: float) -> Received | None:
        """The worker and the sender are stopped; the sender continues a little later."""
        monkeypatch.setattr(endpoint, "receive", receive)
        inbox.clock.advance(2 * RECEIVE_LIMIT_S)
        inbox.network.faults = Faults(delay_s=(5.0, 5.0))
        inbox.tensor(3)
        return None

    monkeypatch.setattr(endpoint, "receive", wait)
    assert inbox.take() == 3


@pytest.fixture
def inbox() -> Inbox:
    """An inbox that expects ``a`` from worker 1 and ``b`` from worker 2 and has read the three hellos."""
    inbox = Inbox()
    inbox.mailbox.expect("p", {"b": "worker-2"})
    inbox.read(3)
    return inbox


def launched(inbox: Inbox, *received: str, delay_s: float = 0.0) -> QueuedLaunch:
    return QueuedLaunch(messages.Launch("p", 3, delay_s), frozenset(received), inbox.clock.now)


def test_ready_steps_begin_in_launch_order(inbox: Inbox) -> None:
    steps = LaunchQueue(inbox.mailbox)
    waits, first, second = launched(inbox, "a"), launched(inbox), launched(inbox)
    for each in (waits, first, second):
        steps.waiting.append(each)
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
        steps.waiting.append(step)
    inbox.clock.advance_to(2.0)
    assert steps.begin(steps.first()[0] or step) == (3.0, 0)
    assert steps.begin(steps.first()[0] or step) == (0.0, 1)


def test_step_beyond_the_limit_names_missing_tensors(inbox: Inbox) -> None:
    steps = LaunchQueue(inbox.mailbox)
    steps.waiting.append(launched(inbox, "b", "a"))
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
    steps.waiting.append(step)
    for source, key in enumerate("ab", 1):
        inbox.tensor(step=3, key=key, source=source)
    inbox.clock.advance_to(2 * RECEIVE_LIMIT_S)
    inbox.send(messages.Launch("p", 4))
    assert steps.first() == (step, 0.0)
    assert inbox.read(1) == [messages.Launch("p", 4)]


def test_limit_holds_while_messages_are_always_waiting(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = LaunchQueue(inbox.mailbox)
    steps.waiting.append(launched(inbox, "a"))
    endpoint = inbox.mailbox._endpoint
    receive = endpoint.receive

    def read(timeout_s: float) -> Received | None:
        """A message is always waiting and takes a second to read."""
        inbox.clock.advance(1.0)
        inbox.send(messages.Welcome())
        return receive(timeout_s)

    monkeypatch.setattr(endpoint, "receive", read)
    while inbox.clock.now < RECEIVE_LIMIT_S:
        assert steps.first() == (None, WAIT_S)
        inbox.read(1)
    inbox.read(1)
    with pytest.raises(ClusterError, match=r"^step 3 of plan 'p': 'a' from worker-1 did not arrive within 600 s"):
        steps.first()


def test_limit_of_a_launch_restarts_after_the_worker_was_stopped(inbox: Inbox) -> None:
    steps = LaunchQueue(inbox.mailbox)
    steps.waiting.append(launched(inbox, "a"))
    inbox.clock.advance(2 * RECEIVE_LIMIT_S)
    inbox.read(1)
    assert steps.first() == (None, WAIT_S)
    while inbox.clock.now < 3 * RECEIVE_LIMIT_S:
        inbox.read(1)
        assert steps.first() == (None, WAIT_S)
    inbox.read(2)
    with pytest.raises(ClusterError, match="did not arrive within 600 s of its launch"):
        steps.first()
