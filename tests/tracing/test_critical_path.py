"""The critical path of a step, on timelines with known paths."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.run.timeline import ClientRun, Span, Timeline
from runner.tracing.critical_path import critical_path
from runner.tracing.timeline_index import TimelineIndex, Update
from tests.tracing.spans import ALONE, B_WAITS_FOR_A, LAUNCHED, SESSION, device, one_run, run, span

Piece = tuple[str, str, int, int]


def pieces(index: TimelineIndex, update: Update) -> list[Piece]:
    """Return each segment of the path as (device, kind, begin, end); device "m" is the session."""
    letters = {device(letter): letter for letter in "abc"} | {SESSION: "m"}
    return [(letters[each.place], each.kind, each.begin_ns, each.end_ns) for each in critical_path(index, update)]


CAME_EARLY = [
    span("a", "compute", 0, 1),
    span("a", "send", 1, 2, "k", peer="b"),
    span("b", "compute", 0, 6),
    span("b", "wait", 6, 7, "k", peer="a"),
    span("b", "receive", 7, 8, "k", peer="a"),
]
ARRIVED_WHILE_BEING_SENT = [
    span("a", "compute", 0, 4),
    span("a", "send", 4, 9, "k", peer="b"),
    span("b", "wait", 1, 7, "k", peer="a"),
    span("b", "compute", 7, 12),
]
THERE_AND_BACK = [
    span("a", "compute", 0, 2),
    span("a", "send", 2, 3, "x", peer="b"),
    span("a", "wait", 3, 9, "y", peer="b"),
    span("a", "compute", 9, 11),
    span("b", "wait", 0, 4, "x", peer="a"),
    span("b", "compute", 4, 7),
    span("b", "send", 7, 8, "y", peer="a"),
]
SENDER_UNKNOWN = [span("b", "compute", 0, 1), span("b", "wait", 1, 5, "k", peer="a"), span("b", "compute", 5, 6)]
LATE_BEGINNING = [span("a", "compute", 0, 1), span("b", "compute", 4, 5)]


@pytest.mark.parametrize(
    ("spans", "path"),
    [
        (ALONE, [("a", "input", 2, 3), ("a", "compute", 3, 7), ("a", "other", 7, 9), ("a", "compute", 9, 10)]),
        (
            B_WAITS_FOR_A,
            [
                ("a", "compute", 0, 10),
                ("a", "send", 10, 12),
                ("b", "wait", 12, 14),
                ("b", "receive", 14, 15),
                ("b", "compute", 15, 20),
            ],
        ),
        (CAME_EARLY, [("b", "compute", 0, 6), ("b", "wait", 6, 7), ("b", "receive", 7, 8)]),
        (ARRIVED_WHILE_BEING_SENT, [("a", "compute", 0, 4), ("a", "send", 4, 7), ("b", "compute", 7, 12)]),
        (
            THERE_AND_BACK,
            [
                ("a", "compute", 0, 2),
                ("a", "send", 2, 3),
                ("b", "wait", 3, 4),
                ("b", "compute", 4, 7),
                ("b", "send", 7, 8),
                ("a", "wait", 8, 9),
                ("a", "compute", 9, 11),
            ],
        ),
        (SENDER_UNKNOWN, [("b", "compute", 0, 1), ("b", "wait", 1, 5), ("b", "compute", 5, 6)]),
        (LATE_BEGINNING, [("b", "other", 0, 4), ("b", "compute", 4, 5)]),
    ],
    ids=["alone", "waits", "arrived-early", "overlap", "there-and-back", "sender-unknown", "late-beginning"],
)
def test_the_path_continues_at_the_sender_of_an_awaited_transfer(spans: list[Span], path: list[Piece]) -> None:
    assert pieces(*one_run(spans)) == path
    assert pieces(*one_run(spans[::-1])) == path


BACK_TO_THE_SEND = [
    ("a", "send", 20, 21),
    ("b", "wait", 21, 24),
    ("b", "receive", 24, 25),
    ("b", "compute", 25, 26),
    ("m", "other", 26, 30),
]
FIRST_RUN = [
    ("b", "other", 0, 2),
    ("b", "compute", 2, 3),
    ("b", "send", 3, 4),
    ("a", "wait", 4, 6),
    ("a", "receive", 6, 7),
    ("a", "compute", 7, 8),
    ("m", "other", 8, 10),
    ("a", "other", 10, 11),
    ("a", "input", 11, 12),
    ("a", "compute", 12, 20),
]


@pytest.mark.parametrize(
    ("update", "path"),
    [
        (Update(0, 0, 30), [*FIRST_RUN, *BACK_TO_THE_SEND]),
        (Update(0, 15, 30), [("a", "compute", 15, 20), *BACK_TO_THE_SEND]),
        (Update(0, 40, 50), [("m", "other", 40, 50)]),
        (Update(0, 28, 29), [("m", "other", 28, 29)]),
    ],
    ids=["launch after a run", "update begins within a run", "after all runs", "between runs"],
)
def test_the_path_passes_through_the_session_to_the_run_that_ended_before(update: Update, path: list[Piece]) -> None:
    assert pieces(LAUNCHED, update) == path


def test_a_launched_run_waits_for_its_busy_device() -> None:
    busy = [span("a", "compute", 0, 8, client="slow"), span("a", "compute", 9, 11, client="next")]
    runs = (run(0, 10, client="slow", launched=True), run(2, 12, client="next", launched=True))
    path = [("a", "compute", 0, 8), ("a", "other", 8, 9), ("a", "compute", 9, 11), ("m", "other", 11, 12)]
    assert pieces(TimelineIndex(Timeline(tuple(busy), runs)), Update(0, 0, 12)) == path


def test_a_send_that_ended_before_its_receiver_began_is_on_the_path_too() -> None:
    spans = [
        span("a", "compute", 0, 5, client="push"),
        span("a", "send", 5, 7, "k", peer="b", client="push"),
        span("b", "compute", 0, 1, client="before"),
        span("b", "input", 6, 8, client="push"),
        span("b", "wait", 8, 9, "k", peer="a", client="push"),
        span("b", "compute", 9, 10, client="push"),
    ]
    index = TimelineIndex(Timeline(tuple(spans), (run(0, 10, client="push", launched=True),)))
    path = [("a", "compute", 0, 5), ("a", "send", 5, 6)]
    path += [("b", "input", 6, 8), ("b", "wait", 8, 9), ("b", "compute", 9, 10)]
    assert pieces(index, Update(0, 0, 10)) == path


def test_runs_of_one_update_follow_one_another() -> None:
    spans = [span("a", "compute", 2, 4), span("a", "compute", 6, 9, number=1)]
    index = TimelineIndex(Timeline(tuple(spans), (run(1, 5), run(5, 10, number=1))))
    path = [("m", "other", 0, 1), ("a", "other", 1, 2), ("a", "compute", 2, 4), ("m", "other", 4, 5)]
    path += [("a", "other", 5, 6), ("a", "compute", 6, 9), ("m", "other", 9, 10)]
    assert pieces(index, Update(0, 0, 10)) == path


def test_transfers_of_different_runs_are_distinguished() -> None:
    spans = [span("a", "send", 0, 9, "k", peer="b"), span("b", "wait", 2, 5, "k", peer="a", number=1)]
    index = TimelineIndex(Timeline(tuple(spans), (run(0, 12), run(2, 6, number=1))))
    assert pieces(index, Update(0, 2, 6)) == [("b", "wait", 2, 5), ("m", "other", 5, 6)]


def test_path_of_an_empty_timeline_is_one_segment() -> None:
    (only,) = critical_path(TimelineIndex(Timeline((), ())), Update(0, 3, 5))
    assert (only.kind, only.ns) == ("other", 2)


@st.composite
def timelines(draw: st.DrawFn) -> TimelineIndex:
    """Draw three devices with successive parts of runs, and transfers of which only one end may be recorded."""
    spans: list[Span] = []
    runs: list[ClientRun] = []
    for number in range(4):
        begin = draw(st.integers(0, 20))
        whole = run(begin, begin + draw(st.integers(1, 20)), number=number, launched=draw(st.booleans()))
        runs += [whole] * draw(st.integers(0, 1))
    for letter in "abc":
        now = draw(st.integers(0, 5))
        for number in draw(st.permutations(range(4))):
            for kind in draw(st.lists(st.sampled_from(["compute", "wait", "send"]), max_size=3)):
                begin = now + draw(st.integers(0, 2))
                now = begin + draw(st.integers(0, 6))
                key = "" if kind == "compute" else draw(st.sampled_from(["k", "l", "m"]))
                spans.append(span(letter, kind, begin, now, key, number=number))
    return TimelineIndex(Timeline(tuple(spans), tuple(runs)))


@given(timelines(), st.integers(0, 30), st.integers(0, 30))
def test_the_path_covers_the_update_without_gap_or_overlap(index: TimelineIndex, begin: int, ns: int) -> None:
    path = critical_path(index, Update(0, begin, begin + ns))
    assert sum(segment.ns for segment in path) == ns
    assert all(segment.ns > 0 for segment in path)
    assert all(before.end_ns == after.begin_ns for before, after in pairwise(path))
