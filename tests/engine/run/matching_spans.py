"""A check for the spans of transfers."""

from collections.abc import Sequence

from runner.engine.run.timeline import Span


def expect_matching_transfers(spans: Sequence[Span]) -> None:
    """Check that every receive has a send of the same run, key and size on its peer device."""
    sends = {_transfer(s): s for s in spans if s.kind == "send"}
    waits = {_transfer(s): s for s in spans if s.kind == "wait"}
    received = [s for s in spans if s.kind == "receive"]
    assert {_transfer(s) for s in received} == set(sends) == set(waits)
    assert len(received) == len(sends) > 0
    for each in received:
        send, wait = sends[_transfer(each)], waits[_transfer(each)]
        assert send.step == wait.step == each.step
        assert send.begin_ns <= wait.end_ns <= each.begin_ns
        assert (send.device, send.peer, send.nbytes) == (each.peer, each.device, each.nbytes)
        assert each.nbytes > 0


def _transfer(span: Span) -> tuple[str, int, str]:
    return span.client, span.number, span.key
