"""The mailbox on a virtual clock: early tensors are stored, and unexpected messages are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runner.engine.cluster.mailbox import RECEIVE_LIMIT_S, Mailbox, Stopped
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.transport.in_process import FakeEndpoint, FakeNetwork, Faults
from runner.engine.cluster.transport.messages import (
    LONGEST_WAIT_S,
    Launch,
    Message,
    Run,
    Shutdown,
    StartTrace,
    StopTrace,
    TensorReady,
    Welcome,
)
from runner.engine.cluster.transport.references import InlineTensor
from runner.errors import ClusterError, SecurityError
from tests.engine.cluster.transport.conftest import identity

REFERENCE = InlineTensor("uint8", (1,), 0)


class Inbox:
    """The mailbox of worker 0, which expects tensor ``a`` from worker 1, and its possible senders."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.network = FakeNetwork(faults=faults)
        own = self.network.endpoint(identity("worker-0"), peers=3)
        self.mailbox = Mailbox(own, lambda: self.network.clock.now, self.network.clock.advance)
        self.mailbox.expect("p", {"a": "worker-1"})
        self._peers = {name: self._peer(name) for name in ("master-0", "worker-1", "worker-2")}

    def _peer(self, name: str) -> FakeEndpoint:
        endpoint = self.network.endpoint(identity(name), peers=3)
        endpoint.connect("worker-0")
        return endpoint

    def tensor(
        self, content: bytes, *, step: int = 0, plan: str = "p", key: str = "a", source: int = 1, due: float = 0.0
    ) -> None:
        """Send a tensor of one byte."""
        message = TensorReady(plan, step, key, REFERENCE, due)
        self._peers[f"worker-{source}"].send("worker-0", message, [content])

    def send(self, message: Message, *documents: bytes) -> None:
        self._peers["master-0"].send("worker-0", message, documents)

    def read(self, reads: int = 9) -> list[Message]:
        """The next request."""
        received = [self.mailbox.next(1.0) for _ in range(reads)]
        return [each.received.message for each in received if each is not None]

    def take(self, step: int = 0) -> bytes:
        """The content of the tensor ``a``."""
        (frame,) = self.mailbox.tensor("p", step, "a").frames
        return bytes(frame)


def test_early_tensor_is_stored() -> None:
    inbox = Inbox()
    inbox.tensor(b"x", step=3)
    inbox.send(Run("p", 3, {}))
    assert inbox.read() == [Run("p", 3, {})]
    assert inbox.mailbox.pending == [("p", "a")]
    assert inbox.take(step=3) == b"x"
    assert inbox.mailbox.pending == []


def test_waiting_for_a_tensor_advances_the_clock() -> None:
    inbox = Inbox(Faults(delay_s=(200.0, 200.0)))
    inbox.tensor(b"x")
    assert inbox.take() == b"x"
    assert inbox.network.clock.now == 200.0


@pytest.mark.parametrize("due", [0.0004, 0.001, 0.0123, 7.5, 150.0])
def test_tensor_is_not_delivered_before_it_is_due(due: float) -> None:
    inbox = Inbox()
    inbox.tensor(b"x", due=due)
    assert inbox.take() == b"x"
    assert inbox.network.clock.now == pytest.approx(due, rel=1e-12)
    assert inbox.network.clock.now >= due


def test_overdue_tensor_is_delivered_at_once() -> None:
    inbox = Inbox()
    inbox.tensor(b"x", due=7.5)
    inbox.network.clock.advance_to(9.0)
    assert inbox.take() == b"x"
    assert inbox.network.clock.now == 9.0


def test_other_tensors_are_stored_while_waiting() -> None:
    inbox = Inbox(Faults(delay_s=(1.0, 1.0)))
    inbox.mailbox.expect("p", {"b": "worker-2"})
    inbox.tensor(b"a", due=5.0)
    inbox.network.clock.advance_to(2.0)
    inbox.tensor(b"b", key="b", source=2, due=9.0)
    assert inbox.take() == b"a"
    assert inbox.mailbox.pending == [("p", "b")]
    assert inbox.network.clock.now == 5.0


def test_shutdown_ends_the_wait_for_a_due_time() -> None:
    inbox = Inbox(Faults(delay_s=(1.0, 1.0)))
    inbox.tensor(b"a", due=5.0)
    inbox.send(Shutdown())
    with pytest.raises(Stopped):
        inbox.take()
    assert inbox.network.clock.now == 1.0


def test_tensor_due_too_late_is_refused() -> None:
    inbox = Inbox()
    inbox.tensor(b"x", due=LONGEST_WAIT_S + 1)
    with pytest.raises(
        SecurityError, match="tensor a of plan p, step 0 from worker-1: due in 201 s, expected at most 200"
    ):
        inbox.read()


def test_tensors_are_stored_during_a_delay() -> None:
    inbox = Inbox(Faults(delay_s=(1.0, 1.0)))
    inbox.tensor(b"x", step=4)
    inbox.mailbox.wait(2.5, step=4)
    assert inbox.network.clock.now == 2.5
    assert inbox.mailbox.pending == [("p", "a")]
    inbox.send(Run("q", 1, {}))
    with pytest.raises(SecurityError, match="'run' from master-0 arrived during step 4, while it was delayed"):
        inbox.mailbox.wait(2.5, step=4)


def test_launches_during_a_delay_are_queued_in_order() -> None:
    inbox = Inbox()
    inbox.send(Launch("q", 1))
    inbox.send(Launch("r", 1))
    inbox.mailbox.wait(2.5, step=4)
    inbox.send(Launch("s", 1))
    assert inbox.read() == [Launch("q", 1), Launch("r", 1), Launch("s", 1)]


def test_trace_messages_during_a_delay_are_queued() -> None:
    inbox = Inbox()
    inbox.send(StartTrace(), b"plans")
    inbox.send(Launch("q", 1))
    inbox.send(StopTrace())
    inbox.mailbox.wait(2.5, step=4)
    assert inbox.read() == [StartTrace(), Launch("q", 1), StopTrace()]


def test_queued_launch_keeps_its_time_of_reading() -> None:
    inbox = Inbox(Faults(delay_s=(1.0, 1.0)))
    inbox.send(Launch("q", 1))
    inbox.mailbox.wait(2.5, step=4)
    request = inbox.mailbox.next(0.0)
    assert request is not None
    assert (request.received.message, request.read_at) == (Launch("q", 1), 1.0)


def test_missing_tensors_are_named_with_senders() -> None:
    inbox = Inbox()
    inbox.mailbox.expect("p", {"b": "worker-2"})
    inbox.tensor(b"x")
    inbox.read()
    assert inbox.mailbox.missing("p", ("a", "b")) == {"b": "worker-2"}


def test_tensors_are_due_when_the_last_one_is() -> None:
    inbox = Inbox()
    inbox.mailbox.expect("p", {"b": "worker-2"})
    assert inbox.mailbox.due("p", ()) == 0.0
    inbox.tensor(b"a", due=7.0)
    inbox.read()
    assert inbox.mailbox.due("p", ("a",)) == 7.0
    assert inbox.mailbox.due("p", ("a", "b")) is None
    inbox.tensor(b"b", key="b", source=2, due=3.0)
    inbox.read()
    assert inbox.mailbox.due("p", ("a", "b")) == 7.0


def test_hello_and_welcome_are_ignored() -> None:
    inbox = Inbox()
    inbox.send(Welcome())
    assert inbox.read() == []


def test_tensors_of_other_plans_and_keys_are_stored() -> None:
    inbox = Inbox()
    inbox.mailbox.expect("q", {"a": "worker-1"})
    inbox.mailbox.expect("p", {"b": "worker-2"})
    inbox.tensor(b"q", plan="q")
    inbox.tensor(b"b", key="b", source=2)
    inbox.tensor(b"a")
    assert inbox.take() == b"a"
    assert inbox.mailbox.pending == [("p", "b"), ("q", "a")]


def test_received_tensor_makes_room_for_the_next_step() -> None:
    inbox = Inbox()
    for step in range(3):
        inbox.tensor(bytes([step]), step=step)
        assert inbox.take(step) == bytes([step])


def read_on(inbox: Inbox) -> None:
    inbox.read()


def wait_for_the_tensor(inbox: Inbox) -> None:
    inbox.take()


Refused = tuple[Callable[[Inbox], None], str]
REFUSED: dict[str, Refused] = {
    "from another worker": (
        lambda inbox: inbox.tensor(b"x", source=2),
        "tensor a of plan p, step 0 from worker-2: expected from worker-1",
    ),
    "unknown key": (
        lambda inbox: inbox.tensor(b"x", key="\x1b[2J"),
        r"tensor \\x1b\[2J of plan p, step 0 from worker-1: no loaded plan receives it",
    ),
    "unknown plan": (
        lambda inbox: inbox.tensor(b"x", plan="q"),
        "tensor a of plan q, step 0 from worker-1: no loaded plan receives it",
    ),
}


@pytest.mark.parametrize("reading", [read_on, wait_for_the_tensor])
@pytest.mark.parametrize("case", REFUSED)
def test_unexpected_tensor_is_refused(case: str, reading: Callable[[Inbox], None]) -> None:
    send, expected = REFUSED[case]
    inbox = Inbox()
    send(inbox)
    with pytest.raises(SecurityError, match=expected):
        reading(inbox)


@pytest.mark.parametrize("step", [0, 1])
def test_second_tensor_of_a_transfer_is_refused(step: int) -> None:
    inbox = Inbox()
    inbox.tensor(b"x")
    inbox.tensor(b"y", step=step)
    expected = f"tensor a of plan p, step {step} from worker-1: the previous one has not been received yet"
    with pytest.raises(SecurityError, match=expected):
        inbox.read()


def test_tensor_of_another_step_is_refused() -> None:
    inbox = Inbox()
    inbox.tensor(b"x", step=4)
    with pytest.raises(SecurityError, match="'a' from worker-1 is for step 4, expected step 5"):
        inbox.take(step=5)


def test_request_during_a_step_is_refused() -> None:
    inbox = Inbox()
    inbox.send(Run("q", 1, {}))
    expected = "'run' from master-0 arrived during step 0, while 'a' was awaited from worker-1"
    with pytest.raises(SecurityError, match=expected):
        inbox.take()


def test_shutdown_ends_a_wait() -> None:
    inbox = Inbox()
    inbox.send(Shutdown())
    with pytest.raises(Stopped):
        inbox.take()


@pytest.mark.parametrize("others", [0, 3])
def test_missing_tensor_is_reported_after_the_limit(others: int) -> None:
    inbox = Inbox(Faults(delay_s=(0.0, 2 * RECEIVE_LIMIT_S)))
    for other in range(others):
        inbox.mailbox.expect("q", {str(other): "worker-2"})
        inbox.tensor(b"x", plan="q", key=str(other), source=2)
    with pytest.raises(ClusterError, match="step 7: 'a' did not arrive from worker-1 within 600 s"):
        inbox.take(step=7)
    assert RECEIVE_LIMIT_S < inbox.network.clock.now < RECEIVE_LIMIT_S + 2


def test_limit_restarts_after_the_worker_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox()
    endpoint = inbox.mailbox._endpoint
    receive = endpoint.receive

    def wait(timeout_s: float) -> Received | None:
        """The worker and the sender are stopped; the sender continues a little later."""
        monkeypatch.setattr(endpoint, "receive", receive)
        inbox.network.clock.advance(2 * RECEIVE_LIMIT_S)
        inbox.network.faults = Faults(delay_s=(5.0, 5.0))
        inbox.tensor(b"x")
        return None

    monkeypatch.setattr(endpoint, "receive", wait)
    assert inbox.take() == b"x"
