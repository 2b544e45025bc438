"""The emulated GPU itself: what joins a capture, and what does not."""

from __future__ import annotations

import pytest

from tests.kernels.gpu.emulation import EmulatedRuntime


def test_a_capture_is_joined_by_who_waits_for_its_events_and_by_nobody_else(runtime: EmulatedRuntime) -> None:
    """Another device may wait, at the same time, for what was there before the capture began."""
    captured, branch, other = (runtime.stream() for _ in range(3))
    before, inside, done = (runtime.event() for _ in range(3))
    seen: list[str] = []
    captured.put(lambda: seen.append("before"))
    runtime.record(before, captured)

    def work() -> None:
        captured.put(lambda: seen.append("first"))
        runtime.record(inside, captured)
        runtime.wait(branch, inside)
        runtime.wait(other, before)
        branch.put(lambda: seen.append("branch"))
        other.put(lambda: seen.append("other"))
        runtime.record(done, branch)
        runtime.wait(captured, done)

    graph = runtime.capture(captured, work)
    runtime.synchronize(other)
    assert seen == ["before", "other"]
    graph.launch(captured)
    runtime.synchronize(captured)
    assert seen == ["before", "other", "first", "branch"]


def test_an_event_of_a_capture_is_none_when_that_is_over(runtime: EmulatedRuntime) -> None:
    stream, event = runtime.stream(), runtime.event()
    runtime.capture(stream, lambda: runtime.record(event, stream))
    with pytest.raises(AssertionError, match="an event of a capture is waited for when that is over"):
        runtime.wait(runtime.stream(), event)
