"""What holds for the spans of any transfers."""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.timeline import Span


def expect_matching_transfers(spans: Sequence[Span]) -> None:
    """Every tensor received was sent, in the same step, with the same key and size, by the other end that it names."""
    sends = {(s.step, s.key): s for s in spans if s.kind == "send"}
    waits = {(s.step, s.key): s for s in spans if s.kind == "wait"}
    received = [s for s in spans if s.kind == "receive"]
    assert {(s.step, s.key) for s in received} == set(sends) == set(waits)
    assert len(received) == len(sends) > 0
    for each in received:
        send, wait = sends[each.step, each.key], waits[each.step, each.key]
        assert send.begin_ns <= wait.end_ns <= each.begin_ns
        assert (send.device, send.peer, send.nbytes) == (each.peer, each.device, each.nbytes)
        assert each.nbytes > 0
