"""Orders of launched parts: on a virtual clock, and as an earlier run recorded them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from runner.engine.run.interleaving import Begin, End, Ending, Interleaving, Launched, Recorded, VirtualTime
from runner.errors import RunnerError


def alone(client: str, device: str, step: int = 0) -> Launched:
    """A step on one device that receives nothing."""
    return Launched(client, step, {device: {}})


def push(client: str, nbytes: int = 0) -> Launched:
    """A step in which ``w`` sends to ``s``."""
    return Launched(client, 0, {"w": {}, "s": {"w": nbytes}})


def clock(seconds: Mapping[tuple[str, str], float], byte_s: float = 0.0) -> VirtualTime:
    """Seconds by client and device, and of a byte on a wire."""
    return VirtualTime(lambda client, device, step: seconds[client, device], lambda nbytes: byte_s * nbytes)


def told(interleaving: Interleaving, count: int) -> list[Begin | End]:
    return [interleaving.next() for _ in range(count)]


def test_devices_work_at_the_same_time_and_the_first_to_end_is_told_first() -> None:
    time = clock({("a", "x"): 5.0, ("b", "y"): 2.0})
    time.launched(alone("a", "x"))
    time.launched(alone("b", "y"))
    assert told(time, 4) == [Begin("a", "x"), Begin("b", "y"), End("b"), End("a")]
    assert time.now == 5.0


def test_a_device_does_one_after_the_other_in_the_order_of_launches() -> None:
    time = clock({("a", "x"): 1.0, ("b", "x"): 1.0})
    time.launched(alone("b", "x"))
    time.launched(alone("a", "x"))
    assert told(time, 4) == [Begin("b", "x"), End("b"), Begin("a", "x"), End("a")]
    assert time.now == 2.0


def test_a_launch_after_an_ending_begins_at_the_time_of_that_ending() -> None:
    time = clock({("a", "x"): 3.0, ("b", "y"): 1.0, ("c", "y"): 1.0})
    time.launched(alone("a", "x"))
    time.launched(alone("b", "y"))
    assert told(time, 3) == [Begin("a", "x"), Begin("b", "y"), End("b")]
    time.launched(alone("c", "y"))
    assert told(time, 3) == [Begin("c", "y"), End("c"), End("a")]


def test_what_was_done_before_nothing_was_under_way_rounds_no_time_of_what_follows() -> None:
    time = clock({("long", "x"): 2.0**60, ("a", "x"): 3.0, ("b", "y"): 1.0})
    time.launched(alone("long", "x"))
    assert told(time, 2) == [Begin("long", "x"), End("long")]
    time.launched(alone("a", "x"))
    time.launched(alone("b", "y"))
    assert told(time, 4) == [Begin("a", "x"), Begin("b", "y"), End("b"), End("a")]
    assert time.now == 2.0**60


def test_a_part_waits_for_what_it_receives_and_others_go_first() -> None:
    time = clock({("p", "w"): 1.0, ("p", "s"): 1.0, ("a", "s"): 2.0}, byte_s=1.0)
    time.launched(push("p", nbytes=4))
    time.launched(alone("a", "s"))
    assert told(time, 5) == [Begin("p", "w"), Begin("a", "s"), End("a"), Begin("p", "s"), End("p")]
    assert time.now == 6.0


def test_a_busy_device_takes_what_has_come_meanwhile_in_the_order_of_launches() -> None:
    time = clock({("p", "w"): 1.0, ("p", "s"): 1.0, ("a", "s"): 3.0, ("b", "s"): 1.0})
    time.launched(alone("a", "s"))
    time.launched(push("p"))
    time.launched(alone("b", "s"))
    begun = [each for each in told(time, 7) if isinstance(each, Begin) and each.device == "s"]
    assert begun == [Begin("a", "s"), Begin("p", "s"), Begin("b", "s")]


def test_parts_that_wait_for_one_another_are_told() -> None:
    time = clock({})
    time.launched(Launched("p", 0, {"w": {"s": 1}, "s": {"w": 1}}))
    with pytest.raises(RunnerError, match="virtual time stands still: p can neither begin nor end"):
        time.next()


def test_a_record_is_followed_device_by_device() -> None:
    """The server served b before p, though p ended first on the worker and was launched first."""
    record = Recorded([Ending("b", 0, {"s": 0}), Ending("p", 0, {"w": 0, "s": 1}), Ending("c", 0, {"w": 1})])
    for launched in (push("p"), alone("b", "s"), alone("c", "w")):
        record.launched(launched)
    assert told(record, 7) == [
        Begin("b", "s"),
        End("b"),
        Begin("p", "w"),
        Begin("p", "s"),
        End("p"),
        Begin("c", "w"),
        End("c"),
    ]


def test_what_a_device_began_before_is_begun_before_though_it_ended_later() -> None:
    record = Recorded([Ending("b", 0, {"s": 1}), Ending("p", 0, {"w": 0, "s": 0})])
    record.launched(push("p"))
    record.launched(alone("b", "s"))
    assert told(record, 5) == [Begin("p", "w"), Begin("p", "s"), Begin("b", "s"), End("b"), End("p")]


def test_a_step_may_be_launched_again_after_its_end() -> None:
    record = Recorded([Ending("a", 0, {"x": 0}), Ending("a", 1, {"x": 1})])
    record.launched(alone("a", "x"))
    assert told(record, 2) == [Begin("a", "x"), End("a")]
    record.launched(alone("a", "x", step=1))
    assert told(record, 2) == [Begin("a", "x"), End("a")]


@pytest.mark.parametrize(
    ("endings", "text"),
    [
        ([], "the record ends after 0 endings, but the run goes on"),
        ([Ending("b", 0, {"x": 0})], "the record has step 0 of 'b' on x next, but this run has launched no such step"),
        ([Ending("a", 1, {"x": 0})], "the record has step 1 of 'a' on x next"),
        ([Ending("a", 0, {"y": 0})], "the record has step 0 of 'a' on y next"),
        ([Ending("a", 0, {"x": 2})], "the record lacks what x began as number 0: it was cut off"),
    ],
)
def test_a_record_of_another_run_is_refused(endings: list[Ending], text: str) -> None:
    record = Recorded(endings)
    record.launched(alone("a", "x"))
    with pytest.raises(RunnerError, match=text):
        record.next()
