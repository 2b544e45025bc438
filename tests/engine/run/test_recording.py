"""Spans of a recorder, and the document that carries them."""

from itertools import count
from typing import Any

import pytest

from runner.engine.cluster.transport.documents import decode_document, encode_document
from runner.engine.run import recording
from runner.engine.run.recording import (
    COMPUTE,
    DELAY,
    MAX_PLANS,
    WAIT,
    PlanRun,
    RawSpan,
    Recorder,
    from_document,
    read_plans,
    to_document,
)
from runner.errors import ResourceError, SecurityError

SPANS = [
    RawSpan(0, 8, 3, 0, "input", 5, 6),
    RawSpan(0, 8, 3, 7, COMPUTE, 6, 10),
    RawSpan(1, 9, 4, 2, WAIT, 2**40, 2**41),
    RawSpan(2, 0, 4, 0, DELAY, 2**41, 2**42),
]


def test_call_is_recorded_with_begin_and_end_and_returns_its_value() -> None:
    recorder = Recorder(clock=count(100).__next__)
    assert recorder.timed(PlanRun(2, 9, 3), 7, COMPUTE, lambda: "value") == "value"
    assert recorder.spans == [RawSpan(plan=2, number=9, step=3, position=7, kind=COMPUTE, begin_ns=100, end_ns=101)]


def test_too_many_spans_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_SPANS", 2)
    recorder = Recorder()
    for _ in range(2):
        recorder.timed(PlanRun(0, 0, 0), 0, COMPUTE, lambda: None)
    with pytest.raises(ResourceError, match="at most 2 spans of a device: record fewer steps"):
        recorder.timed(PlanRun(0, 0, 0), 0, COMPUTE, lambda: None)


@pytest.mark.parametrize("spans", [SPANS, []])
def test_document_round_trip(spans: list[RawSpan]) -> None:
    frame = encode_document(to_document(spans))
    assert from_document(decode_document(memoryview(frame)), "worker-0") == spans


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": [0, 6, 1, 2]}, r"spans of worker-0\.kind\[1\]: 6, expected a whole number from 0 to 5"),
        ({"plan": [0, 1, 2, 65536]}, r"spans of worker-0\.plan\[3\]: 65536, expected a whole number from 0 to 65535"),
        ({"position": [0, -1, 1, 2]}, r"spans of worker-0\.position\[1\]: -1, expected a whole number"),
        ({"step": [1, 2]}, "expected columns of equal length"),
        ({"more": []}, r"unknown \['more'\]"),
        ({"end_ns": 3}, r"spans of worker-0\.end_ns: 3, expected a list"),
    ],
)
def test_malformed_document_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SecurityError, match=f"^spans of worker-0 refused: .*{complaint}"):
        from_document({**to_document(SPANS), **change}, "worker-0")


def test_the_longest_document_fits_a_frame() -> None:
    longest = [2**63 - 1] * recording.MAX_SPANS
    columns = dict.fromkeys(("number", "step", "position", "begin_ns", "end_ns"), longest)
    encode_document({**columns, "kind": [5] * recording.MAX_SPANS, "plan": [MAX_PLANS - 1] * recording.MAX_SPANS})


def test_plan_names_are_read_in_order() -> None:
    assert read_plans(decode_document(memoryview(encode_document(["b", "a"])))) == ("b", "a")
    with pytest.raises(SecurityError, match=r"^plans of a trace refused: .*\[1\]: 3, expected text of at most 64"):
        read_plans(["a", 3])
