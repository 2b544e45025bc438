"""Launched steps that have not begun, on a virtual clock: who goes first, and what waits for too long."""

from __future__ import annotations

import pytest

from runner.engine.launched_steps import LaunchedStep, LaunchedSteps
from runner.engine.mailbox import RECEIVE_LIMIT_S, WAIT_S
from runner.engine.transport.messages import Launch
from runner.errors import ClusterError
from tests.engine.test_mailbox import Inbox


@pytest.fixture
def inbox() -> Inbox:
    """It expects ``a`` of worker 1 and ``b`` of worker 2, and has read the three greetings."""
    inbox = Inbox()
    inbox.mailbox.expect("p", {"b": "worker-2"})
    inbox.read(3)
    return inbox


def launched(inbox: Inbox, *received: str, delay_s: float = 0.0) -> LaunchedStep:
    return LaunchedStep(Launch("p", 3, delay_s), frozenset(received), inbox.network.clock.now)


def test_of_those_that_can_begin_the_one_launched_first_does(inbox: Inbox) -> None:
    steps = LaunchedSteps(inbox.mailbox)
    waits, first, second = launched(inbox, "a"), launched(inbox), launched(inbox)
    for each in (waits, first, second):
        steps.add(each)
    assert steps.first() == (first, 0.0)
    assert steps.begin(first) == (0.0, 0)
    assert steps.begin(second) == (0.0, 1)
    assert steps.first() == (None, WAIT_S)
    inbox.tensor(b"x", step=3, due=0.5)
    inbox.read(1)
    assert steps.first() == (waits, 0.5)


def test_a_delay_counts_from_when_the_launch_was_read(inbox: Inbox) -> None:
    steps = LaunchedSteps(inbox.mailbox)
    for step in (launched(inbox, delay_s=5.0), launched(inbox, delay_s=1.0)):
        steps.add(step)
    inbox.network.clock.advance_to(2.0)
    assert steps.begin(steps.first()[0] or step) == (3.0, 0)
    assert steps.begin(steps.first()[0] or step) == (0.0, 1)


def test_a_step_that_lacks_something_after_the_limit_is_told_with_what_it_lacks(inbox: Inbox) -> None:
    steps = LaunchedSteps(inbox.mailbox)
    steps.add(launched(inbox, "b", "a"))
    while inbox.network.clock.now < RECEIVE_LIMIT_S:
        assert steps.first() == (None, WAIT_S)
        inbox.read(1)
    inbox.read(1)
    expected = r"^step 3 of plan 'p': 'a' from worker-1, 'b' from worker-2 did not arrive within 600 s of its launch$"
    with pytest.raises(ClusterError, match=expected):
        steps.first()


def test_what_has_come_and_was_not_read_in_time_is_not_late(inbox: Inbox) -> None:
    """A worker that is busy with other steps reads nothing."""
    steps = LaunchedSteps(inbox.mailbox)
    step = launched(inbox, "a", "b")
    steps.add(step)
    for source, key in enumerate("ab", 1):
        inbox.tensor(b"x", step=3, key=key, source=source)
    inbox.network.clock.advance_to(2 * RECEIVE_LIMIT_S)
    for _ in range(2):
        assert steps.first() == (None, WAIT_S)
        inbox.read(1)
    assert steps.first() == (step, 0.0)
