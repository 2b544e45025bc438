"""The emulated GPU itself: which streams join a capture."""

import pytest

from tests.kernels.gpu.emulation import EmulatedRuntime


def test_a_stream_joins_a_capture_by_waiting_for_an_event_recorded_in_it(runtime: EmulatedRuntime) -> None:
    """Another device may wait for an event that was recorded before the capture began."""
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


def test_an_event_of_a_capture_is_invalid_after_the_capture(runtime: EmulatedRuntime) -> None:
    stream, event = runtime.stream(), runtime.event()
    runtime.capture(stream, lambda: runtime.record(event, stream))
    with pytest.raises(AssertionError, match="an event of a capture is waited for when that is over"):
        runtime.wait(runtime.stream(), event)
