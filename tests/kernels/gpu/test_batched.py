"""Many element-wise calls as one launch: the grouping and the results."""

from collections.abc import Iterable, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runner.kernels.contract import Arrangement, Buffers, Operand, plain
from runner.kernels.gpu import elementwise
from runner.kernels.gpu.element_kernels import FlatCall
from runner.kernels.gpu.element_loops import CHUNK
from runner.kernels.gpu.runtime import DeviceMemory
from runner.kernels.gpu.streams import Touched, groups, together
from tests.kernels.gpu.emulation import EmulatedRuntime, EmulatedStream
from tests.kernels.gpu.running import Array, got, put, reference, registry_of, require_close
from tests.kernels.harness import Shaped

UPDATE = {"program": "mul 1 #0.9; add 3 0; mul 4 2; sub 1 5", "outputs": (4, 6)}
"""An update from a gradient, a variable and a scalar rate, with two outputs."""


def touching(reads: Iterable[int], writes: Iterable[int]) -> Touched:
    """Return a work on places of 64 bytes."""
    spans = [tuple((64 * place, 64 * place + 64) for place in places) for places in (reads, writes)]
    return Touched(*spans)


def test_updates_are_collected_in_one_launch() -> None:
    gradients = [touching([9], [place]) for place in (0, 1, 2)]
    updates = [touching([place, 10 + place], [10 + place]) for place in (0, 1, 2)]
    works = [work for pair in zip(gradients, updates, strict=True) for work in pair]
    assert groups(works, [None, "update"] * 3) == [[0], [2], [4], [1, 3, 5]]


def test_two_programs_are_two_launches() -> None:
    works = [touching([place], [place]) for place in range(6)]
    assert groups(works, ["a", "b"] * 3) == [[0, 2, 4], [1, 3, 5]]


def test_a_work_whose_result_is_read_later_is_not_delayed() -> None:
    works = [touching([0], [1]), touching([1], [2]), touching([3], [4])]
    assert groups(works, ["a", None, "a"]) == [[0], [1], [2]]


def test_a_work_is_not_delayed_until_its_input_is_overwritten() -> None:
    works = [touching([0], [1]), touching([], [0]), touching([0], [2])]
    assert groups(works, ["a", None, "a"]) == [[0], [1], [2]]


def test_works_of_one_launch_do_not_read_each_others_outputs() -> None:
    works = [touching([2], [1]), touching([0], [2])]
    assert groups(works, ["a", "a"]) == [[0], [1]]


def test_works_that_read_the_same_are_one() -> None:
    works = [touching([5, place], [place]) for place in range(4)]
    assert groups(works, ["a"] * 4) == [[0, 1, 2, 3]]


SPANS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 3)).map(lambda s: (s[0], s[0] + s[1])), max_size=2)
WORKS = st.lists(st.tuples(st.builds(Touched, SPANS.map(tuple), SPANS.map(tuple)), st.sampled_from([*"ab", None])))


@given(WORKS)
def test_groups_give_the_results_of_the_works_in_order(works: list[tuple[Touched, str | None]]) -> None:
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
    """Return the contents of places if each work writes a hash of itself and its inputs."""
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
    """A plain array in memory of the GPU."""
    spec = Shaped.of(array)
    found = Operand(spec, plain(spec), runtime.allocate(spec.nbytes))
    put(runtime, stream, found, array)
    return found


def update_of(runtime: EmulatedRuntime, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> FlatCall:
    """Return the program of an update, bound to operands."""
    kernel = registry_of(runtime, elementwise).find("elementwise", "gpu", "cuda")
    arrangement = Arrangement(tuple(each.layout for each in inputs), tuple(each.layout for each in outputs))
    call = kernel.bind(UPDATE, arrangement, Buffers(tuple(inputs), tuple(outputs), DeviceMemory(0, 0)))
    assert isinstance(call, FlatCall)
    return call
