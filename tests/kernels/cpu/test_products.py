"""Matrix products computed inside element-wise updates: values, equal bits, shared memory, and refused nodes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from runner.engine.run.kernel_table import load_kernels
from runner.kernels.contract import Array, Kernel, plain
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.compiler import MachineCode
from runner.kernels.cpu.machine_code.loops import ElementLoop
from runner.kernels.cpu.machine_code.products import MOST_TERMS, Update, write_module
from runner.kernels.elementwise import Program, parse
from tests.kernels.cpu.onednn.checking import assert_close
from tests.kernels.cpu.test_programs import all_same_bits
from tests.kernels.harness import Shaped, exact, filled, holding, invoke, run_node, run_shared

MOMENTUM = parse("mul 1 4; add 5 2; mul 6 3; sub 0 7", 5, (8, 6))
"""Inputs: parameters, velocity, gradient, learning rate, momentum. Outputs: parameters, velocity."""
GRADIENT = 2

SIZES = [(1, 1, 1), (1, 9, 100), (7, 33, 1), (5, 17, 48), (33, 24, 67), (3, 1, 40), (64, 8, 113), (2, 16, 16)]
"""(terms, rows, columns): some products fill whole blocks; others leave rows, vectors or single numbers over."""


def kernel(library: str = "llvm") -> Kernel:
    return load_kernels().find("matmul_elementwise", "cpu", library)


def attributes_of(program: Program, product: int, **changes: Any) -> dict[str, Any]:
    turned = {"transpose_a": True, "transpose_b": False}
    what = {"program": program.text, "outputs": program.outputs, "product": product}
    return {**turned, "dtype": "float32", **what, **changes}


def momentum_arrays(size: tuple[int, int, int]) -> list[Array]:
    """Return x, dy, parameters, velocity, learning rate and momentum."""
    m, k, n = size
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (m, n), (k, n), (k, n))]
    return [*arrays, np.asarray(0.25, np.float32), np.asarray(0.5, np.float32)]


def expected(attributes: dict[str, Any], arrays: Sequence[Array]) -> list[Array]:
    return exact("matmul_elementwise", arrays, attributes)


def computed(attributes: dict[str, Any], arrays: Sequence[Array]) -> list[Array]:
    return run_node(kernel(), attributes, arrays).outputs


@pytest.mark.parametrize("size", SIZES)
def test_an_update_equals_the_reference(size: tuple[int, int, int]) -> None:
    arrays, attributes = momentum_arrays(size), attributes_of(MOMENTUM, GRADIENT)
    for came, wanted in zip(computed(attributes, arrays), expected(attributes, arrays), strict=True):
        assert_close(came, wanted, 1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_terms_are_added_in_order_and_every_sum_is_rounded_once(size: tuple[int, int, int]) -> None:
    x, dy = momentum_arrays(size)[:2]
    (came,) = computed(attributes_of(parse("mul 0 #1", 1, (1,)), 0), [x, dy])
    total = np.zeros((x.shape[1], dy.shape[1]), np.float32)
    for one, other in zip(x.astype(np.float64), dy.astype(np.float64), strict=True):
        # Products of float32 are exact in float64. The sum is rounded to float64 and
        # then to float32, which changes about one result in 2**29.
        total = (total + np.outer(one, other)).astype(np.float32)
    np.testing.assert_array_equal(came, total)


@pytest.mark.parametrize("product", [0, 1, 2])
def test_the_product_may_be_any_input_of_the_program(product: int) -> None:
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 30), (4, 100), (30, 100), ())]
    attributes = attributes_of(parse("mul 0 #0.5; sub 1 3; sub 4 2", 3, (5, 4)), product)
    for came, wanted in zip(computed(attributes, arrays), expected(attributes, arrays), strict=True):
        assert_close(came, wanted)


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_vectors_of_every_size_give_the_same_bits(vector_bytes: int) -> None:
    arrays, result = momentum_arrays((5, 17, 101)), Shaped((17, 101), "float32")
    loop = ElementLoop(MOMENTUM, "float32", (True, True, True, False, False))
    code = MachineCode(write_module(Update(loop, GRADIENT, 5, 17, 101), vector_bytes))
    operands = [*map(holding, arrays), *(filled(result, plain(result)) for _ in range(2))]
    invoke(threads.call(code, [operand.address for operand in operands], 17, 8, operands, parallel=False))
    found = [operand.array for operand in operands[-2:]]
    assert all_same_bits(found, computed(attributes_of(MOMENTUM, GRADIENT), arrays))


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PARALLEL_BYTES", 0)
    arrays, attributes = momentum_arrays((5, 43, 101)), attributes_of(MOMENTUM, GRADIENT)
    alone = computed(attributes, arrays)
    for number in (2, 3, 7):
        with threadpool_limits(number, user_api="openmp"):
            assert all_same_bits(computed(attributes, arrays), alone)


W, V = 2, 3
"""Positions of parameters and velocity among the inputs of the node."""


@pytest.mark.parametrize("places", [(W, V), (V, W), (W, None), (None, W)])
def test_outputs_may_share_memory_with_operands(places: tuple[int | None, int | None]) -> None:
    arrays, attributes = momentum_arrays((5, 20, 70)), attributes_of(MOMENTUM, GRADIENT)
    arrangement = run_node(kernel(), attributes, arrays).arrangement
    assert set(arrangement.in_place) == {(W, 0), (W, 1), (V, 0), (V, 1)}
    assert arrangement.scratch_bytes == 0
    assert all_same_bits(run_shared(kernel(), attributes, arrays, places), computed(attributes, arrays))


@pytest.mark.parametrize(
    ("terms", "turned", "taken"),
    [
        *((terms, (True, False), 0 < terms <= MOST_TERMS) for terms in (0, 1, 40, MOST_TERMS, MOST_TERMS + 1)),
        *((40, turned, False) for turned in ((False, False), (False, True), (True, True))),
    ],
)
def test_other_transpositions_and_numbers_of_terms_are_refused(
    terms: int, turned: tuple[bool, bool], taken: bool
) -> None:
    attributes = attributes_of(parse("sub 0 1", 2, (2,)), 1, transpose_a=turned[0], transpose_b=turned[1])
    x, dy, result = (Shaped(shape, "float32") for shape in ((terms, 40), (terms, 40), (40, 40)))
    assert (kernel().arrange(attributes, [x, dy, result], [result], [None] * 3) is not None) == taken


@pytest.mark.parametrize(("dtype", "library"), [("float32", "llvm"), ("float64", "numpy"), ("bfloat16", "numpy")])
def test_machine_code_is_chosen_for_float32_only(dtype: str, library: str) -> None:
    x, dy, w = (Shaped(shape, dtype) for shape in ((4, 40), (4, 50), (40, 50)))
    attributes = attributes_of(parse("sub 0 1", 2, (2,)), 1, dtype=dtype)
    choice = load_kernels().choose("matmul_elementwise", "cpu", attributes, [x, dy, w], [w], [None] * 3)
    assert choice.kernel.library == library
