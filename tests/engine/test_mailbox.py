"""A worker's inbox on a virtual clock: what came early waits, and what nobody announced is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runner.engine.mailbox import RECEIVE_LIMIT_S, Mailbox, Stopped
from runner.engine.transport.in_process import FakeEndpoint, FakeNetwork, Faults
from runner.engine.transport.messages import (
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
from runner.engine.transport.references import InlineTensor
from runner.errors import ClusterError, SecurityError
from tests.engine.transport.conftest import identity

REFERENCE = InlineTensor("uint8", (1,), 0)


class Inbox:
    """The mailbox of worker 0, which expects tensor ``a`` of worker 1, and everyone who can write to it."""

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

    def say(self, message: Message, *documents: bytes) -> None:
        self._peers["master-0"].send("worker-0", message, documents)

    def read(self, reads: int = 9) -> list[Message]:
        """What asks for something among the next messages."""
        received = [self.mailbox.next(1.0) for _ in range(reads)]
        return [each.received.message for each in received if each is not None]

    def take(self, step: int = 0) -> bytes:
        """The content of the tensor ``a``."""
        (frame,) = self.mailbox.tensor("p", step, "a").frames
        return bytes(frame)


def test_a_tensor_that_came_before_it_was_asked_for_is_kept() -> None:
    inbox = Inbox()
    inbox.tensor(b"x", step=3)
    inbox.say(Run("p", 3, {}))
    assert inbox.read() == [Run("p", 3, {})]
    assert inbox.mailbox.pending == [("p", "a")]
    assert inbox.take(step=3) == b"x"
    assert inbox.mailbox.pending == []


def test_a_tensor_is_waited_for_in_time_that_passes() -> None:
    inbox = Inbox(Faults(delay_s=(200.0, 200.0)))
    inbox.tensor(b"x")
    assert inbox.take() == b"x"
    assert inbox.network.clock.now == 200.0


@pytest.mark.parametrize("due", [0.0004, 0.001, 0.0123, 7.5, 150.0])
def test_a_tensor_is_not_given_out_before_it_is_due(due: float) -> None:
    inbox = Inbox()
    inbox.tensor(b"x", due=due)
    assert inbox.take() == b"x"
    assert inbox.network.clock.now == pytest.approx(due, rel=1e-12)
    assert inbox.network.clock.now >= due


def test_a_tensor_that_was_due_before_it_is_asked_for_is_given_out_at_once() -> None:
    inbox = Inbox()
    inbox.tensor(b"x", due=7.5)
    inbox.network.clock.advance_to(9.0)
    assert inbox.take() == b"x"
    assert inbox.network.clock.now == 9.0


def test_others_are_taken_in_until_a_tensor_is_due() -> None:
    inbox = Inbox(Faults(delay_s=(1.0, 1.0)))
    inbox.mailbox.expect("p", {"b": "worker-2"})
    inbox.tensor(b"a", due=5.0)
    inbox.network.clock.advance_to(2.0)
    inbox.tensor(b"b", key="b", source=2, due=9.0)
    assert inbox.take() == b"a"
    assert inbox.mailbox.pending == [("p", "b")]
    assert inbox.network.clock.now == 5.0


def test_a_shutdown_ends_the_wait_for_what_is_due_later() -> None:
    inbox = Inbox(Faults(delay_s=(1.0, 1.0)))
    inbox.tensor(b"a", due=5.0)
    inbox.say(Shutdown())
    with pytest.raises(Stopped):
        inbox.take()
    assert inbox.network.clock.now == 1.0


def test_a_tensor_due_further_away_than_anybody_waits_is_refused() -> None:
    inbox = Inbox()
    inbox.tensor(b"x", due=LONGEST_WAIT_S + 1)
    with pytest.raises(
        SecurityError, match="tensor a of plan p, step 0 came from worker-1, due in 201 s, expected 200"
    ):
        inbox.read()


def test_a_step_is_put_off_while_tensors_are_taken_in() -> None:
    inbox = Inbox(Faults(delay_s=(1.0, 1.0)))
    inbox.tensor(b"x", step=4)
    inbox.mailbox.wait(2.5, step=4)
    assert inbox.network.clock.now == 2.5
    assert inbox.mailbox.pending == [("p", "a")]
    inbox.say(Run("q", 1, {}))
    with pytest.raises(SecurityError, match="'run' from master-0 came within step 4, while it was put off"):
        inbox.mailbox.wait(2.5, step=4)


def test_what_is_launched_while_a_step_is_put_off_is_read_after_it_in_order() -> None:
    inbox = Inbox()
    inbox.say(Launch("q", 1))
    inbox.say(Launch("r", 1))
    inbox.mailbox.wait(2.5, step=4)
    inbox.say(Launch("s", 1))
    assert inbox.read() == [Launch("q", 1), Launch("r", 1), Launch("s", 1)]


def test_a_trace_may_be_asked_for_while_a_step_is_put_off() -> None:
    inbox = Inbox()
    inbox.say(StartTrace(), b"plans")
    inbox.say(Launch("q", 1))
    inbox.say(StopTrace())
    inbox.mailbox.wait(2.5, step=4)
    assert inbox.read() == [StartTrace(), Launch("q", 1), StopTrace()]


def test_what_is_launched_while_a_step_is_put_off_was_read_when_it_came() -> None:
    inbox = Inbox(Faults(delay_s=(1.0, 1.0)))
    inbox.say(Launch("q", 1))
    inbox.mailbox.wait(2.5, step=4)
    request = inbox.mailbox.next(0.0)
    assert request is not None
    assert (request.received.message, request.read_at) == (Launch("q", 1), 1.0)


def test_what_is_missing_is_named_with_its_sender() -> None:
    inbox = Inbox()
    inbox.mailbox.expect("p", {"b": "worker-2"})
    inbox.tensor(b"x")
    inbox.read()
    assert inbox.mailbox.missing("p", ("a", "b")) == {"b": "worker-2"}


def test_tensors_are_due_together_when_all_have_come() -> None:
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


def test_greetings_ask_for_nothing() -> None:
    inbox = Inbox()
    inbox.say(Welcome())
    assert inbox.read() == []


def test_tensors_of_other_plans_and_keys_wait_for_their_turn() -> None:
    inbox = Inbox()
    inbox.mailbox.expect("q", {"a": "worker-1"})
    inbox.mailbox.expect("p", {"b": "worker-2"})
    inbox.tensor(b"q", plan="q")
    inbox.tensor(b"b", key="b", source=2)
    inbox.tensor(b"a")
    assert inbox.take() == b"a"
    assert inbox.mailbox.pending == [("p", "b"), ("q", "a")]


def test_a_tensor_used_makes_room_for_the_next_step() -> None:
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
        "tensor a of plan p, step 0 came from worker-2, expected worker-1",
    ),
    "unknown key": (
        lambda inbox: inbox.tensor(b"x", key="\x1b[2J"),
        r"tensor \\x1b\[2J of plan p, step 0 came from worker-1, but no plan here receives it",
    ),
    "unknown plan": (
        lambda inbox: inbox.tensor(b"x", plan="q"),
        "tensor a of plan q, step 0 came from worker-1, but no plan here receives it",
    ),
}


@pytest.mark.parametrize("reading", [read_on, wait_for_the_tensor])
@pytest.mark.parametrize("case", REFUSED)
def test_a_tensor_that_nobody_announced_is_refused(case: str, reading: Callable[[Inbox], None]) -> None:
    send, expected = REFUSED[case]
    inbox = Inbox()
    send(inbox)
    with pytest.raises(SecurityError, match=expected):
        reading(inbox)


@pytest.mark.parametrize("step", [0, 1])
def test_a_second_tensor_before_the_first_was_used_is_refused(step: int) -> None:
    inbox = Inbox()
    inbox.tensor(b"x")
    inbox.tensor(b"y", step=step)
    expected = f"tensor a of plan p, step {step} came from worker-1, but one is waiting already"
    with pytest.raises(SecurityError, match=expected):
        inbox.read()


def test_a_tensor_of_another_step_is_refused_when_it_is_used() -> None:
    inbox = Inbox()
    inbox.tensor(b"x", step=4)
    with pytest.raises(SecurityError, match="'a' came from worker-1 for step 4, expected step 5"):
        inbox.take(step=5)


def test_a_request_within_a_step_is_refused() -> None:
    inbox = Inbox()
    inbox.say(Run("q", 1, {}))
    expected = "'run' from master-0 came within step 0, while 'a' was awaited from worker-1"
    with pytest.raises(SecurityError, match=expected):
        inbox.take()


def test_shutdown_ends_a_wait() -> None:
    inbox = Inbox()
    inbox.say(Shutdown())
    with pytest.raises(Stopped):
        inbox.take()


@pytest.mark.parametrize("others", [0, 3])
def test_a_tensor_that_does_not_come_is_told_after_the_limit(others: int) -> None:
    """Whatever arrives meanwhile."""
    inbox = Inbox(Faults(delay_s=(0.0, 2 * RECEIVE_LIMIT_S)))
    for other in range(others):
        inbox.mailbox.expect("q", {str(other): "worker-2"})
        inbox.tensor(b"x", plan="q", key=str(other), source=2)
    with pytest.raises(ClusterError, match="step 7: 'a' did not arrive from worker-1 within 600 s"):
        inbox.take(step=7)
    assert RECEIVE_LIMIT_S < inbox.network.clock.now < RECEIVE_LIMIT_S + 2
