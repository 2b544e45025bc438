"""Idle times of devices, on timelines where they are known."""

from runner.engine.run.timeline import Timeline
from runner.tracing.timeline_index import TimelineIndex, Update
from runner.tracing.waiting import Waited, spent, waited, waits_between
from tests.tracing.spans import LAUNCHED, SESSION, SHARE, device, one_run, run, span

A, B, C = map(device, "abc")


def test_all_waits_of_an_update_count_whether_on_the_path_or_not() -> None:
    index, update = one_run(
        [
            span("a", "compute", 0, 3),
            span("a", "wait", 3, 9, "y", peer="b"),
            span("b", "wait", 0, 4, "x", peer="a"),
            span("a", "wait", 20, 21, "z", peer="b"),
            span("c", "wait", 0, 2, "w", peer="a"),
        ]
    )
    assert list(waits_between(index)) == []
    found = waited(index, [], update)
    assert found == {(A, B): Waited(2, 7), (B, A): Waited(1, 4), (C, A): Waited(1, 2)}
    assert list(found) == [(A, B), (B, A), (C, A)]
    assert waited(index, [], Update(0, 4, 20)) == {(A, B): Waited(1, 5)}


def test_before_a_launched_run_a_device_waits_for_its_launch_then_for_the_last_transfer() -> None:
    between = [(each.first.device, each.whom, each.begin_ns, each.end_ns) for each in waits_between(LAUNCHED)]
    assert between == [(A, SESSION, 8, 10), (B, SESSION, 4, 10), (B, A, 10, 24)]
    assert waited(LAUNCHED, waits_between(LAUNCHED), Update(0, 0, 12)) == {
        (B, SESSION): Waited(1, 6),
        (A, SESSION): Waited(1, 2),
        (B, A): Waited(1, 2),
    }


def test_a_device_that_is_busy_until_it_can_begin_does_not_wait() -> None:
    busy = span("b", "compute", 9, 24, client="other")
    index = TimelineIndex(Timeline((busy, *SHARE), (run(10, 28, client="share", launched=True),)))
    assert list(waits_between(index)) == []


def test_every_device_spends_the_time_of_an_update() -> None:
    index, update = LAUNCHED, Update(0, 0, 30)
    assert spent(index, update) == {
        A: {"receive": 1, "compute": 9, "input": 1, "send": 1, "idle": 18},
        B: {"compute": 2, "send": 1, "receive": 1, "idle": 26},
    }
    assert spent(index, Update(0, 14, 25)) == {A: {"compute": 6, "send": 1, "idle": 4}, B: {"receive": 1, "idle": 10}}
