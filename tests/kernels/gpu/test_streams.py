"""GPU kernel calls: their streams in a step, launches that several calls share, and captures on the emulated GPU."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.kernels.contract import Arrangement, Buffers, Operand, plain
from runner.kernels.gpu import elementwise
from runner.kernels.gpu.element_kernels import FlatCall
from runner.kernels.gpu.element_loops import CHUNK
from runner.kernels.gpu.runtime import DeviceMemory, Failures, StreamCall, blocks_for, in_order, launch
from runner.kernels.gpu.source import with_common
from runner.kernels.gpu.streams import Touched, Turn, assign_streams, groups, together
from tests.kernels.gpu.emulation import EmulatedRuntime, EmulatedStream
from tests.kernels.gpu.running import Array, failures, got, put, registry_of, require_close
from tests.kernels.harness import Shaped, reference


def touched(reads: Sequence[int], writes: Sequence[int]) -> Touched:
    """Return the spans of bytes that a call reads and writes; each number stands for a cell of eight bytes."""
    return Touched(tuple((8 * k, 8 * k + 8) for k in reads), tuple((8 * k, 8 * k + 8) for k in writes))


def before(turns: Sequence[Turn]) -> list[set[int]]:
    """Return, for each call, all calls that finish before that call starts."""
    found: list[set[int]] = []
    last: dict[int, int] = {}
    for number, turn in enumerate(turns):
        direct = {*turn.after, *([last[turn.stream]] if turn.stream in last else [])}
        found.append(direct.union(*(found[each] for each in direct)))
        last[turn.stream] = number
    return found


def conflicts(first: Touched, second: Touched) -> bool:
    def meet(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
        return any(a < d and c < b for a, b in some for c, d in others)

    return meet(first.writes, second.reads) or meet(first.writes, second.writes) or meet(first.reads, second.writes)


def random_works(seed: int) -> list[Touched]:
    """Return calls that touch few cells, so that most calls conflict; some spans overlap only partly."""
    rng = np.random.default_rng(seed)
    works = []
    for _ in range(40):
        spans = [(int(8 * begin), int(8 * (begin + size))) for begin, size in rng.integers([0, 1], [12, 4], (4, 2))]
        works.append(Touched(tuple(spans[: rng.integers(0, 3)]), tuple(spans[3:])))
    return works


@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize("seed", range(20))
def test_calls_on_the_same_memory_keep_their_order(seed: int, streams: int) -> None:
    works = random_works(seed)
    turns = assign_streams(works, streams)
    earlier = before(turns)
    for j, second in enumerate(works):
        for i in range(j):
            assert not conflicts(works[i], second) or i in earlier[j], (i, j)
    assert {turn.stream for turn in turns} <= set(range(streams))


@pytest.mark.parametrize("seed", range(20))
def test_waits_are_not_redundant(seed: int) -> None:
    turns = assign_streams(random_works(seed), 3)
    for number, turn in enumerate(turns):
        for each in turn.after:
            without = [*turns[:number], Turn(turn.stream, tuple(set(turn.after) - {each}))]
            assert each not in before(without)[number]


def test_a_chain_stays_on_one_stream() -> None:
    chain = [touched([k], [k + 1]) for k in range(10)]
    assert assign_streams(chain, 4) == [Turn(0, ())] * 10


def test_branches_have_separate_streams_and_join_again() -> None:
    works = [
        touched([], [0]),
        touched([0], [1]),
        touched([0], [2]),
        touched([1], [3]),
        touched([2], [4]),
        touched([3, 4], [5]),
    ]
    turns = assign_streams(works, 2)
    assert [turn.stream for turn in turns] == [0, 0, 1, 0, 1, 1]
    assert [turn.after for turn in turns] == [(), (), (0,), (), (), (3,)]


@pytest.mark.parametrize(
    ("works", "programs", "expected"),
    [
        pytest.param(
            [([9], [0]), ([0, 10], [10]), ([9], [1]), ([1, 11], [11]), ([9], [2]), ([2, 12], [12])],
            [None, "update"] * 3,
            [[0], [2], [4], [1, 3, 5]],
            id="updates share a launch",
        ),
        pytest.param([([k], [k]) for k in range(6)], "ababab", [[0, 2, 4], [1, 3, 5]], id="two programs"),
        pytest.param([([0], [1]), ([1], [2]), ([3], [4])], ["a", None, "a"], [[0], [1], [2]], id="output is read"),
        pytest.param([([0], [1]), ([], [0]), ([0], [2])], ["a", None, "a"], [[0], [1], [2]], id="overwritten"),
        pytest.param([([2], [1]), ([0], [2])], "aa", [[0], [1]], id="no reads of outputs in one launch"),
        pytest.param([([5, k], [k]) for k in range(4)], "aaaa", [[0, 1, 2, 3]], id="equal reads"),
    ],
)
def test_calls_that_can_wait_share_a_launch(works: list[Any], programs: Sequence[str | None], expected: object) -> None:
    assert groups([touched(*work) for work in works], programs) == expected


SPANS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 3)).map(lambda s: (s[0], s[0] + s[1])), max_size=2)
WORKS = st.lists(st.tuples(st.builds(Touched, SPANS.map(tuple), SPANS.map(tuple)), st.sampled_from([*"ab", None])))


@given(WORKS)
def test_groups_give_the_results_of_the_calls_in_order(works: list[tuple[Touched, str | None]]) -> None:
    touched, programs = [work for work, _ in works], [program for _, program in works]
    found = groups(touched, programs)
    forwards = [number for group in found for number in group]
    backwards = [number for group in found for number in reversed(group)]
    assert sorted(forwards) == list(range(len(works)))
    assert _memory(touched, forwards) == _memory(touched, backwards) == _memory(touched, range(len(works)))
    for group in found:
        assert len({programs[number] for number in group}) == 1
        assert len(group) == 1 or programs[group[0]] is not None


def _memory(works: Sequence[Touched], order: Iterable[int]) -> list[int]:
    """Return the memory after all calls, if each call writes a hash of its number and its inputs."""
    memory = list(range(16))
    for number in order:
        seen = tuple(memory[place] for span in works[number].reads for place in range(*span))
        for begin, end in works[number].writes:
            memory[begin:end] = [hash((number, seen, place)) for place in range(begin, end)]
    return memory


def test_one_launch_equals_many_bit_for_bit(runtime: EmulatedRuntime) -> None:
    rng, stream = np.random.default_rng(0), runtime.stream()
    rate = np.asarray(0.01, "float32")
    rate_there = operand(runtime, stream, rate)
    updates = []
    for count in (5, 0, CHUNK, CHUNK + 1, 1, 3 * CHUNK + 7, 0):
        arrays = [rng.standard_normal(count).astype("float32") for _ in range(2)]
        inputs = [*(operand(runtime, stream, array) for array in arrays), rate_there]
        outputs = [operand(runtime, stream, np.full(count, np.nan, "float32")) for _ in range(2)]
        updates.append((arrays, outputs, update_of(runtime, inputs, outputs)))
    together(runtime, [call for *_, call in updates]).enqueue(stream)
    for arrays, outputs, _ in updates:
        found = [got(runtime, stream, output) for output in outputs]
        require_close(found, reference("elementwise", [*arrays, rate], UPDATE))


def operand(runtime: EmulatedRuntime, stream: EmulatedStream, array: Array) -> Operand:
    """Return a plain array in GPU memory."""
    spec = Shaped.of(array)
    found = Operand(spec, plain(spec), runtime.allocate(spec.nbytes))
    put(runtime, stream, found, array)
    return found


UPDATE = {"program": "mul 1 #0.9; add 3 0; mul 4 2; sub 1 5", "outputs": (4, 6)}
"""An update from a gradient, a variable and a scalar rate, with two outputs."""


def update_of(runtime: EmulatedRuntime, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> FlatCall:
    """Return the call of UPDATE on these operands."""
    kernel = registry_of(runtime, elementwise).find("elementwise", "gpu", "cuda")
    arrangement = Arrangement(tuple(each.layout for each in inputs), tuple(each.layout for each in outputs))
    call = kernel.bind(UPDATE, arrangement, Buffers(tuple(inputs), tuple(outputs), DeviceMemory(0, 0)))
    assert isinstance(call, FlatCall)
    return call


def test_calls_of_a_node_are_enqueued_in_order_and_at_most_one_can_fail(runtime: EmulatedRuntime) -> None:
    log: list[tuple[str, int]] = []

    def noting(name: str, fails: Failures | None = None) -> StreamCall:
        return StreamCall(lambda stream: log.append((name, stream.handle)), failures=fails)

    stream, (word, other) = runtime.stream(), (failures(runtime, str) for _ in range(2))
    both = in_order([noting("first"), noting("second", word)])
    both.enqueue(stream)
    assert log == [("first", stream.handle), ("second", stream.handle)]
    assert both.failures is word
    assert in_order([noting("first")]).failures is None
    with pytest.raises(ValueError, match="at most one of the calls of a node may report failures"):
        in_order([noting("first", other), both])
    turn = runtime.allocate(1)
    summed = StreamCall(both.enqueue, turn=turn, captured=False)
    joined = in_order([both, summed, summed])
    assert (joined.failures, joined.turn, joined.captured) == (word, turn, False)
    with pytest.raises(ValueError, match="all turns must be equal"):
        in_order([summed, replace(summed, turn=runtime.allocate(1))])


@pytest.mark.parametrize(("count", "blocks"), [(0, 1), (1, 1), (256, 1), (257, 2), (8192, 32), (1 << 40, 32)])
def test_a_loop_has_no_more_blocks_than_fill_the_gpu(runtime: EmulatedRuntime, count: int, blocks: int) -> None:
    assert runtime.multiprocessors == 2
    assert blocks_for(runtime, count) == blocks


DIVIDE = """
extern "C" __global__ void divide(const int64 *a, const int64 *b, int64 *y, int64 count) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) y[i] = quotient(a[i], b[i]);
}
"""


def test_quotients_of_32_and_64_bit_integers_are_exact(runtime: EmulatedRuntime) -> None:
    a = np.array([7, 2**32 - 1, 2**32, 2**40 + 5, 5, 2**62], "int64")
    b = np.array([2, 3, 3, 2**33, 2**35, 7], "int64")
    y, stream = np.zeros_like(a), runtime.stream()
    fixed = [*(np.uintp(each.ctypes.data) for each in (a, b, y)), np.int64(len(a))]
    launch(runtime.function(with_common(DIVIDE), "divide"), 1, fixed).enqueue(stream)
    runtime.synchronize(stream)
    np.testing.assert_array_equal(y, a // b)


def test_a_stream_joins_a_capture_if_it_waits_for_an_event_recorded_in_the_capture(runtime: EmulatedRuntime) -> None:
    """A stream that waits for an earlier event does not join: another device may wait for it during the capture."""
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
    with pytest.raises(AssertionError, match="a stream waits for an event of a capture that is over"):
        runtime.wait(runtime.stream(), event)
