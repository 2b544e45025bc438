"""The critical path of a step, on timelines with known paths."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.run.timeline import ClientRun, Span, Timeline
from runner.tracing.critical_path import critical_path
from runner.tracing.timeline_index import TimelineIndex, Update
from tests.tracing.spans import ALONE, B_WAITS_FOR_A, LAUNCHED, SESSION, device, one_run, run, span, tracks


def path_of(index: TimelineIndex, update: Update) -> str:
    """Return the path as times and segments in turn: ``a:wait`` is a wait on device a; the session is device "m"."""
    letters = {device(letter): letter for letter in "abc"} | {SESSION: "m"}
    path = critical_path(index, update)
    assert all(before.end_ns == after.begin_ns for before, after in pairwise(path))
    return " ".join([f"{path[0].begin_ns}", *(f"{letters[each.place]}:{each.kind} {each.end_ns}" for each in path)])


@pytest.mark.parametrize(
    ("spans", "path"),
    [
        (ALONE, "2 a:input 3 a:compute 7 a:other 9 a:compute 10"),
        (B_WAITS_FOR_A, "0 a:compute 10 a:send 12 b:wait 14 b:receive 15 b:compute 20"),
        (
            tracks("a 0 compute 1 send:k:b 2", "b 0 compute 6 wait:k:a 7 receive:k:a 8"),
            "0 b:compute 6 b:wait 7 b:receive 8",
        ),
        (tracks("a 0 compute 4 send:k:b 9", "b 1 wait:k:a 7 compute 12"), "0 a:compute 4 a:send 7 b:compute 12"),
        (
            tracks("a 0 compute 2 send:x:b 3 wait:y:b 9 compute 11", "b 0 wait:x:a 4 compute 7 send:y:a 8"),
            "0 a:compute 2 a:send 3 b:wait 4 b:compute 7 b:send 8 a:wait 9 a:compute 11",
        ),
        (tracks("b 0 compute 1 wait:k:a 5 compute 6"), "0 b:compute 1 b:wait 5 b:compute 6"),
        (tracks("a 0 compute 1", "b 4 compute 5"), "0 b:other 4 b:compute 5"),
    ],
    ids=["alone", "waits", "arrived-early", "overlap", "there-and-back", "sender-unknown", "late-beginning"],
)
def test_the_path_continues_at_the_sender_of_an_awaited_transfer(spans: list[Span], path: str) -> None:
    assert path_of(*one_run(spans)) == path
    assert path_of(*one_run(spans[::-1])) == path


FIRST_RUN = "0 b:other 2 b:compute 3 b:send 4 a:wait 6 a:receive 7 a:compute 8 m:other 10 a:other 11 a:input 12"
BACK_TO_THE_SEND = "a:compute 20 a:send 21 b:wait 24 b:receive 25 b:compute 26 m:other 30"


@pytest.mark.parametrize(
    ("update", "path"),
    [
        (Update(0, 0, 30), f"{FIRST_RUN} {BACK_TO_THE_SEND}"),
        (Update(0, 15, 30), f"15 {BACK_TO_THE_SEND}"),
        (Update(0, 40, 50), "40 m:other 50"),
        (Update(0, 28, 29), "28 m:other 29"),
    ],
    ids=["launch after a run", "update begins within a run", "after all runs", "between runs"],
)
def test_the_path_passes_through_the_session_to_the_run_that_ended_before(update: Update, path: str) -> None:
    assert path_of(LAUNCHED, update) == path


def test_a_launched_run_waits_for_its_busy_device() -> None:
    busy = (*tracks("a 0 compute 8", client="slow"), *tracks("a 9 compute 11", client="next"))
    runs = (run(0, 10, client="slow", launched=True), run(2, 12, client="next", launched=True))
    path = path_of(TimelineIndex(Timeline(busy, runs)), Update(0, 0, 12))
    assert path == "0 a:compute 8 a:other 9 a:compute 11 m:other 12"


def test_a_send_that_ended_before_its_receiver_began_is_on_the_path_too() -> None:
    before = tracks("b 0 compute 1", client="before")
    pushed = tracks("a 0 compute 5 send:k:b 7", "b 6 input 8 wait:k:a 9 compute 10", client="push")
    index = TimelineIndex(Timeline((*before, *pushed), (run(0, 10, client="push", launched=True),)))
    assert path_of(index, Update(0, 0, 10)) == "0 a:compute 5 a:send 6 b:input 8 b:wait 9 b:compute 10"


def test_runs_of_one_update_follow_one_another() -> None:
    spans = (span("a", "compute", 2, 4), span("a", "compute", 6, 9, number=1))
    path = path_of(TimelineIndex(Timeline(spans, (run(1, 5), run(5, 10, number=1)))), Update(0, 0, 10))
    assert path == "0 m:other 1 a:other 2 a:compute 4 m:other 5 a:other 6 a:compute 9 m:other 10"


def test_transfers_of_different_runs_are_distinguished() -> None:
    spans = (span("a", "send", 0, 9, "k", peer="b"), span("b", "wait", 2, 5, "k", peer="a", number=1))
    index = TimelineIndex(Timeline(spans, (run(0, 12), run(2, 6, number=1))))
    assert path_of(index, Update(0, 2, 6)) == "2 b:wait 5 m:other 6"


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
