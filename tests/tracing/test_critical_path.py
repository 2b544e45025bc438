"""The path that decides how long a step takes, on timelines whose path is known."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.timeline import Span
from runner.tracing.critical_path import Waited, by_step, critical_path, waits
from tests.tracing.spans import ALONE, B_WAITS_FOR_A, device, span

Piece = tuple[str, str, int, int]


def pieces(spans: list[Span]) -> list[Piece]:
    """The path as (letter, kind, from, to)."""
    letters = {device(letter): letter for letter in "abc"}
    return [(letters[each.device], each.kind, each.begin_ns, each.end_ns) for each in critical_path(spans)]


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
LATE_BEGINNING = [
    span("a", "compute", 0, 1),
    span("b", "compute", 4, 5),
]


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
        ([], []),
    ],
    ids=["alone", "waits", "came-early", "overlap", "there-and-back", "sender-unknown", "late-beginning", "nothing"],
)
def test_the_path_goes_to_the_sender_where_it_was_waited_for(spans: list[Span], path: list[Piece]) -> None:
    assert pieces(spans) == path
    assert pieces(spans[::-1]) == path


@st.composite
def timelines(draw: st.DrawFn) -> list[Span]:
    """Three devices with spans one after the other; transfers find their ends, or not, at any time."""
    spans = []
    keys = st.sampled_from(["k", "l", "m"])
    for letter in "abc":
        now = draw(st.integers(0, 5))
        for kind in draw(st.lists(st.sampled_from(["compute", "wait", "send"]), max_size=6)):
            begin = now + draw(st.integers(0, 2))
            now = begin + draw(st.integers(0, 6))
            spans.append(span(letter, kind, begin, now, "" if kind == "compute" else draw(keys)))
    return spans


@given(timelines())
def test_the_path_covers_the_step_without_gap_or_overlap(spans: list[Span]) -> None:
    path = critical_path(spans)
    begin, end = min((s.begin_ns for s in spans), default=0), max((s.end_ns for s in spans), default=0)
    assert sum(segment.ns for segment in path) == end - begin
    assert all(segment.ns > 0 for segment in path)
    assert all(before.end_ns == after.begin_ns for before, after in pairwise(path))


def test_all_waits_count_whether_on_the_path_or_not() -> None:
    spans = [
        *THERE_AND_BACK,
        span("a", "wait", 20, 21, "z", peer="b"),
        span("c", "wait", 0, 2, "w", peer="a"),
    ]
    a, b, c = map(device, "abc")
    assert waits(spans) == {(a, b): Waited(2, 7), (b, a): Waited(1, 4), (c, a): Waited(1, 2)}
    assert list(waits(spans)) == [(a, b), (b, a), (c, a)]


def test_steps_are_told_apart() -> None:
    spans = [span("a", "compute", 5, 6, step=1), span("a", "compute", 0, 1, step=0), span("b", "compute", 7, 8, step=1)]
    assert by_step(spans) == {0: [spans[1]], 1: [spans[0], spans[2]]}
