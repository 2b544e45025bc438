"""Many element-wise calls as one launch: which may be, and what comes of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runner.kernels.gpu import elementwise
from runner.kernels.gpu.batched import groups, together
from runner.kernels.gpu.calls import StreamCall
from runner.kernels.gpu.element_kernels import Extent, FlatCall
from runner.kernels.gpu.element_loops import CHUNK
from runner.kernels.gpu.runtime import DeviceMemory
from runner.kernels.registry import Arrangement, Buffers, Kernel, Operand, plain
from tests.kernels.gpu.emulation import EmulatedRuntime, EmulatedStream
from tests.kernels.gpu.running import Array, got, put, reference, registry_of, require_close
from tests.kernels.harness import Shaped

UPDATE = {"program": "mul 1 #0.9; add 3 0; mul 4 2; sub 1 5", "outputs": (4, 6)}
"""Of a gradient, a variable and a rate: two outputs, and one input that is a single element for all."""


def flat_call(batch: str, reads: Sequence[Extent], writes: Sequence[Extent]) -> FlatCall:
    """A call that touches memory and does nothing."""
    return FlatCall(lambda stream: None, batch=batch, count=1, addresses=(), reads=tuple(reads), writes=tuple(writes))


def test_calls_of_one_program_that_touch_different_memory_are_one() -> None:
    scalar = (900, 904)
    calls = [flat_call("a", [scalar, (64 * k, 64 * k + 60)], [(64 * k, 64 * k + 60)]) for k in range(5)]
    assert groups(calls) == [[0, 1, 2, 3, 4]]


def test_two_programs_in_turns_are_two() -> None:
    calls = [flat_call("ab"[k % 2], [(64 * k, 64 * k + 64)], [(64 * k, 64 * k + 64)]) for k in range(6)]
    assert groups(calls) == [[0, 2, 4], [1, 3, 5]]


def test_a_call_waits_for_what_it_reads() -> None:
    chain = [flat_call("a", [(0, 64)], [(64, 128)]), flat_call("a", [(64, 128)], [(128, 192)])]
    assert groups(chain) == [[0], [1]]


def test_a_call_does_not_pass_one_that_reads_what_it_writes() -> None:
    calls = [
        flat_call("a", [(0, 64)], [(64, 128)]),
        flat_call("b", [(128, 192)], [(192, 256)]),
        flat_call("a", [(0, 64)], [(128, 192)]),
    ]
    assert groups(calls) == [[0], [1], [2]]


def test_nothing_passes_a_call_of_another_kind() -> None:
    first, last = (flat_call("a", [], [(64 * k, 64 * k + 64)]) for k in range(2))
    assert groups([first, StreamCall(lambda stream: None), last]) == [[0], [1], [2]]


EXTENTS = st.tuples(st.integers(0, 11), st.integers(1, 3)).map(lambda each: (each[0], each[0] + each[1]))
CALLS = st.lists(
    st.builds(
        flat_call, st.sampled_from("abc"), st.lists(EXTENTS, max_size=2), st.lists(EXTENTS, min_size=1, max_size=2)
    ),
    max_size=10,
)


@given(CALLS)
def test_groups_give_what_the_calls_give_one_after_the_other(calls: list[FlatCall]) -> None:
    found = groups(calls)
    assert sorted(position for group in found for position in group) == list(range(len(calls)))
    expected, one = _memory(calls, range(len(calls))), [position for group in found for position in group]
    backwards = [position for group in found for position in reversed(group)]
    assert _memory(calls, one) == _memory(calls, backwards) == expected
    for group in found:
        assert len({calls[position].batch for position in group}) == 1


def _memory(calls: Sequence[FlatCall], order: Sequence[int]) -> list[int]:
    """What bytes hold when each call writes what depends on it and on all that it reads."""
    memory = list(range(16))
    for position in order:
        seen = tuple(memory[place] for extent in calls[position].reads for place in range(*extent))
        for begin, end in calls[position].writes:
            memory[begin:end] = [hash((position, seen, place)) for place in range(begin, end)]
    return memory


def test_one_launch_gives_the_bits_of_many(runtime: EmulatedRuntime) -> None:
    rng = np.random.default_rng(0)
    counts = [5, 0, CHUNK, CHUNK + 1, 1, 3 * CHUNK + 7, 0]
    stream = runtime.stream()
    rate = operand(runtime, stream, np.asarray(0.01, "float32"))
    kernel = registry_of(runtime, elementwise).find("elementwise", "gpu", "cuda")
    nodes = []
    for count in counts:
        arrays = [rng.standard_normal(count).astype("float32") for _ in range(2)]
        inputs = [*(operand(runtime, stream, array) for array in arrays), rate]
        outputs = [operand(runtime, stream, np.full(count, np.nan, "float32")) for _ in range(2)]
        nodes.append((arrays, outputs, bound(kernel, inputs, outputs)))
    calls = [call for *_, call in nodes]
    assert groups(calls) == [list(range(len(counts)))]
    together(runtime, calls).enqueue(stream)
    for arrays, outputs, _ in nodes:
        found = [got(runtime, stream, output) for output in outputs]
        require_close(found, reference("elementwise", [*arrays, np.asarray(0.01, "float32")], UPDATE))


def test_one_call_alone_stays_what_it_is(runtime: EmulatedRuntime) -> None:
    call = flat_call("a", [], [(0, 64)])
    assert together(runtime, [call]) is call


def operand(runtime: EmulatedRuntime, stream: EmulatedStream, array: Array) -> Operand:
    """A plain array in memory of the card."""
    spec = Shaped.of(array)
    memory: DeviceMemory = runtime.allocate(spec.nbytes)
    found = Operand(spec, plain(spec), memory)
    put(runtime, stream, found, array)
    return found


def bound(kernel: Kernel, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> FlatCall:
    """The call of a kernel on operands as they are."""
    arrangement = Arrangement(tuple(each.layout for each in inputs), tuple(each.layout for each in outputs))
    scratch = DeviceMemory(0, 0)
    call = kernel.bind(UPDATE, arrangement, Buffers(tuple(inputs), tuple(outputs), scratch))
    assert isinstance(call, FlatCall)
    return call
