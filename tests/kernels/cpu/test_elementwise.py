"""Element-wise kernels in machine code equal ``evaluate``, the definition of programs, bit for bit, also in place."""

import math
from collections.abc import Iterator
from typing import Any

import cffi
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from runner.kernels.contract import Arrangement, Array, Attributes, Buffers, Kernel, Layout, NativeCall, Operand, plain
from runner.kernels.cpu.machine_code import elementwise
from runner.kernels.cpu.machine_code import threads as openmp
from runner.kernels.cpu.machine_code.compiler import MachineCode
from runner.kernels.cpu.machine_code.loops import ElementLoop, write_module
from runner.kernels.cpu.machine_code.threads import PARALLEL_BYTES, Loop, on_one
from runner.kernels.elementwise import FUNCTIONS, Program, evaluate, parse
from runner.kernels.registry import Registry
from tests.kernels.cpu.test_programs import Case, all_same_bits, awkward, cases
from tests.kernels.harness import Shaped, call_bound, filled, holding, invoke, reference, run_node

DTYPES = ["float32", "bfloat16"]
WITH_SCALARS_ALONE = [*DTYPES, "float64"]
PARALLEL = PARALLEL_BYTES // 4 + 5
"""A number of elements that every program divides among threads and that is no multiple of the vector length."""

MOMENTUM = parse("mul 1 #0.9; mul 2 3; sub 4 5; add 0 6", 4, (6, 7))
"""Inputs: parameters, velocity, gradient, learning rate. Outputs: velocity, parameters."""


@pytest.fixture(scope="module")
def llvm() -> Registry:
    """Return a registry with the kernels under test."""
    registry = Registry()
    elementwise.register(registry)
    return registry


@pytest.fixture
def threads() -> Iterator[Any]:
    """Yield a function that sets the number of OpenMP threads for calls by this thread; restore it after the test."""
    ffi = cffi.FFI()
    ffi.cdef("void omp_set_num_threads(int); int omp_get_max_threads(void);")
    library = ffi.dlopen(openmp.LIBRARY)
    before = library.omp_get_max_threads()
    yield library.omp_set_num_threads
    library.omp_set_num_threads(before)


def attributes_of(program: Program) -> Attributes:
    return {"program": program.text, "outputs": program.outputs}


def arrays_of(size: int, dtype: str, wide: tuple[bool, ...] = (True, True, True, False), seed: int = 1) -> list[Array]:
    """Return an array of ``size`` elements or a scalar for each input; by default, for the inputs of MOMENTUM."""
    return [awkward(seed + k, (size,) if each else (), dtype) for k, each in enumerate(wide)]


def expected(program: Program, arrays: list[Array]) -> tuple[Array, ...]:
    with np.errstate(all="ignore"):
        return evaluate(program, arrays)


def require_definition(llvm: Registry, program: Program, arrays: list[Array]) -> None:
    """Require that the kernel gives the same bits as ``evaluate``, which defines programs."""
    found = run_node(llvm.find("elementwise", "cpu", "llvm"), attributes_of(program), arrays).outputs
    assert all_same_bits(found, expected(program, arrays)), program.text


@settings(max_examples=50)
@given(case=cases(), size=st.integers(1, 40), dtype=st.sampled_from(WITH_SCALARS_ALONE), seed=st.integers(0, 1000))
def test_any_program_equals_its_definition_bit_for_bit(
    llvm: Registry, case: Case, size: int, dtype: str, seed: int
) -> None:
    assume(dtype != "float64" or not case.program.is_derived)
    wide = (False,) * len(case.wide) if dtype == "float64" else case.wide
    require_definition(llvm, case.program, arrays_of(size, dtype, wide, seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 17, 1000, PARALLEL])
def test_programs_of_any_size_equal_the_definition(llvm: Registry, size: int, dtype: str) -> None:
    require_definition(llvm, MOMENTUM, arrays_of(size, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_vectors_of_any_width_give_the_results_of_the_definition(dtype: str, vector_bytes: int) -> None:
    arrays = arrays_of(45, dtype)
    code = MachineCode(write_module(ElementLoop(MOMENTUM, dtype, (True, True, True, False)), vector_bytes))
    operands = [*map(holding, arrays), *(filled(Shaped.of(arrays[0]), plain(Shaped.of(arrays[0]))) for _ in range(2))]
    addresses = np.array([operand.address for operand in operands], np.intp)
    invoke(on_one(Loop(code.address("slice"), int(addresses.ctypes.data), 45, 16, operands)))
    assert all_same_bits([operand.array for operand in operands[4:]], expected(MOMENTUM, arrays))


@pytest.mark.parametrize("dtype", WITH_SCALARS_ALONE)
def test_a_tensor_without_axes_has_one_element(llvm: Registry, dtype: str) -> None:
    require_definition(llvm, MOMENTUM, arrays_of(1, dtype, (False,) * 4))


def test_a_program_may_have_more_values_than_registers(llvm: Registry) -> None:
    reads = "; ".join(f"mul {k} #1.5" for k in range(40))
    folds = "; ".join(f"sub {k + 39} {k}" for k in range(1, 40))
    require_definition(llvm, parse(f"{reads}; {folds}", 40, (40, 118)), arrays_of(100, "float32", (True,) * 40))


@pytest.mark.parametrize("text", ["add 0 1", "add 0 #1.0", "add 0 #0.0", "add 0 #-0.0"])
def test_a_literal_differs_from_a_value_number(llvm: Registry, text: str) -> None:
    require_definition(llvm, parse(text, 2, (2,)), arrays_of(20, "float32", (True, True)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [21, PARALLEL])
@pytest.mark.parametrize("places", [(0, None), (1, None), (2, None), (None, 0), (None, 1), (1, 0), (0, 1), (2, 1)])
def test_outputs_may_share_memory_with_any_inputs(
    llvm: Registry, places: tuple[int | None, int | None], size: int, dtype: str
) -> None:
    kernel = llvm.find("elementwise", "cpu", "llvm")
    arrays = arrays_of(size, dtype)
    specs, result = [Shaped.of(array) for array in arrays], Shaped((size,), dtype)
    arrangement = arranged(kernel, attributes_of(MOMENTUM), specs, [result] * 2, list(map(plain, specs)))
    inputs = [holding(array) for array in arrays]
    outputs = [filled(result, plain(result)) if place is None else inputs[place] for place in places]
    call_bound(kernel, attributes_of(MOMENTUM), arrangement, inputs, outputs)
    assert all_same_bits([output.array for output in outputs], expected(MOMENTUM, arrays))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_threads_gives_the_same_bits(llvm: Registry, threads: Any, count: int, dtype: str) -> None:
    threads(count)
    require_definition(llvm, MOMENTUM, arrays_of(PARALLEL, dtype))


def test_threads_compute_every_element_once(llvm: Registry, threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.kernels.cpu.machine_code.threads.PARALLEL_BYTES", 0)
    kernel, program = llvm.find("elementwise", "cpu", "llvm"), parse("add 0 #1.0", 1, (1,))
    threads(3)
    for size in range(120):
        spec = Shaped((size,), "float32")
        arrangement = arranged(kernel, attributes_of(program), [spec], [spec], [plain(spec)])
        counter = holding(np.zeros(size, np.float32))
        call_bound(kernel, attributes_of(program), arrangement, [counter], [counter])
        assert (counter.array == 1).all(), f"{size} elements"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_ops_of_a_single_function_equal_the_reference(llvm: Registry, function: str, dtype: str) -> None:
    arrays = [awkward(k, (3, 50), dtype) for k in range(FUNCTIONS[function][0])]
    assert_like_reference(llvm, function, arrays)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_error_function_is_accurate(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-4.2, 4.2, 20_000), 10.0 ** rng.uniform(-30, 1, 2_000)]).astype(dtype)
    exact = np.array([math.erf(each) for each in x.tolist()])
    (found,) = reference("erf", [x])
    np.testing.assert_allclose(found, exact, rtol={"float32": 5e-7, "float64": 0.0}[dtype], atol=0)
    assert np.abs(found).max() <= 1
    assert np.array_equal(reference("erf", [-x])[0], -found)
    limits = reference("erf", [np.array([6.5, np.inf, -np.inf, np.nan, -0.0], dtype)])[0]
    np.testing.assert_array_equal(limits, [1, 1, -1, np.nan, 0])
    assert np.signbit(limits[-1])


def test_derived_functions_of_scalars_in_float64_are_refused(llvm: Registry) -> None:
    scalar = Shaped((), "float64")
    for function, is_supported in (("erf", False), ("neg", True)):
        found = llvm.find(function, "cpu", "llvm").arrange({}, [scalar], [scalar], [plain(scalar)])
        assert (found is not None) == is_supported


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("terms", [2, 3, 5])
def test_many_terms_are_added_from_the_left(llvm: Registry, terms: int, dtype: str) -> None:
    assert_like_reference(llvm, "add_n", [awkward(k, (40,), dtype) for k in range(terms)])


@pytest.mark.parametrize("function", ["square", "sqrt", "neg"])
def test_all_bfloat16_numbers_equal_the_reference(llvm: Registry, function: str) -> None:
    assert_like_reference(llvm, function, [np.arange(1 << 16, dtype=np.uint16).view("bfloat16")])


def test_bfloat16_is_rounded_once_with_ties_to_even(llvm: Registry) -> None:
    one, small = np.ones(4, "bfloat16"), (2.0 ** -np.arange(7, 11)).astype("bfloat16")
    program = parse("add 0 1; sub 2 0; add 2 1", 2, (2, 3, 4))
    sums, differences, twice = run_node(
        llvm.find("elementwise", "cpu", "llvm"), attributes_of(program), [one, small]
    ).outputs
    last = 2.0**-7  # the step between neighbouring bfloat16 numbers from 1 to 2
    np.testing.assert_array_equal(sums.astype("float64"), [1 + last, 1, 1, 1])
    np.testing.assert_array_equal(differences, small)
    np.testing.assert_array_equal(twice.astype("float64"), [1 + 2 * last, 1 + last, 1, 1])


@pytest.mark.parametrize("position", [0, 1])
def test_a_scalar_operand_is_broadcast(llvm: Registry, position: int) -> None:
    arrays = [awkward(0, (40,), "float32"), awkward(1, (40,), "float32")]
    arrays[position] = np.float32(-0.75).reshape(())
    assert_like_reference(llvm, "sub", arrays)


def assert_like_reference(llvm: Registry, op: str, arrays: list[Array]) -> None:
    """Require that the kernel gives the bits of the reference kernel."""
    with np.errstate(all="ignore"):
        found = run_node(llvm.find(op, "cpu", "llvm"), {}, arrays).outputs
    assert all_same_bits(found, reference(op, arrays))


def arranged(
    kernel: Kernel,
    attributes: Attributes,
    inputs: list[Shaped],
    outputs: list[Shaped],
    offered: list[Layout | None],
) -> Arrangement:
    found = kernel.arrange(attributes, inputs, outputs, offered)
    assert found is not None
    return found


def test_a_bound_call_keeps_its_arguments_alive(llvm: Registry) -> None:
    kernel, spec = llvm.find("neg", "cpu", "llvm"), Shaped((4,), "float32")
    arrangement = arranged(kernel, {}, [spec], [spec], [None])
    operand = filled(spec, plain(spec))
    bound = kernel.bind({}, arrangement, Buffers((operand,), (operand,), operand.data[:0]))
    assert isinstance(bound, NativeCall)
    # If the call's array of addresses were freed, one of these arrays of the same size would reuse its memory.
    others = [np.zeros(2, np.intp) for _ in range(100)]
    assert all(other.ctypes.data not in bound.arguments for other in others)


IMAGE = Shaped((2, 3, 5, 5), "float32")
SCALAR = Shaped((), "float32")
PLAIN = plain(IMAGE)
PADDED = Layout("aBcd16b", 2 * 16 * 25 * 4)
DENSE = Layout("acdb", IMAGE.nbytes)


def layouts(llvm: Registry, text: str, offered: list[Layout | None], outputs: tuple[int, ...]) -> Arrangement:
    """Return the arrangement of a program over images, and over scalars where ``plain(SCALAR)`` is offered."""
    inputs = [SCALAR if offer == plain(SCALAR) else IMAGE for offer in offered]
    attributes = {"program": text, "outputs": outputs}
    return arranged(llvm.find("elementwise", "cpu", "llvm"), attributes, inputs, [IMAGE] * len(outputs), offered)


@pytest.mark.parametrize(
    ("text", "outputs", "offered", "taken"),
    [
        *(("add 0 1; mul 2 1", (2, 3), each, PLAIN) for each in ([None, None], [PLAIN, None], [PLAIN, PLAIN])),
        *(("add 0 1; mul 2 1", (2, 3), each, PADDED) for each in ([None, PADDED], [PLAIN, PADDED], [PADDED, DENSE])),
        # A layout with padding is chosen only if the program maps the zeros in the padding to zeros.
        ("add 0 #1.0", (1,), [PADDED], PLAIN),
        ("add 0 #1.0", (1,), [DENSE], DENSE),
        ("add 0 1; add 2 #1.0", (3,), [PADDED, DENSE], DENSE),
    ],
)
def test_all_inputs_and_outputs_have_one_layout(
    llvm: Registry, text: str, outputs: tuple[int, ...], offered: list[Layout | None], taken: Layout
) -> None:
    found = layouts(llvm, text, offered, outputs)
    assert {*found.inputs, *found.outputs} == {taken}


def test_scalars_stay_plain_and_outputs_may_share_memory_with_images(llvm: Registry) -> None:
    found = layouts(llvm, "mul 0 1; add 3 2", [PADDED, plain(SCALAR), None], (3, 4))
    assert (found.inputs, found.outputs) == ((PADDED, plain(SCALAR), PADDED), (PADDED, PADDED))
    assert set(found.in_place) == {(0, 0), (0, 1), (2, 0), (2, 1)}


def test_padding_is_computed_like_other_elements(llvm: Registry) -> None:
    kernel, attributes = llvm.find("elementwise", "cpu", "llvm"), {"program": "mul 0 #3.0", "outputs": (1,)}
    arrangement = arranged(kernel, attributes, [IMAGE], [IMAGE], [PADDED])
    source, result = filled(IMAGE, PADDED), filled(IMAGE, PADDED)
    numbers(source)[:] = np.arange(PADDED.nbytes // 4)
    call_bound(kernel, attributes, arrangement, [source], [result])
    np.testing.assert_array_equal(numbers(result), 3 * np.arange(PADDED.nbytes // 4))


def numbers(operand: Operand) -> Array:
    """Return all memory of a tensor, as float32."""
    return operand.data.view(np.float32)


@pytest.mark.parametrize(
    ("op", "inputs", "result"),
    [
        ("add", [Shaped((4,), "int64")] * 2, Shaped((4,), "int64")),
        ("neg", [Shaped((4,), "float16")], Shaped((4,), "float16")),
        ("neg", [Shaped((1,), "float64")], Shaped((1,), "float64")),
        ("add", [Shaped((2, 4), "float32"), Shaped((4,), "float32")], Shaped((2, 4), "float32")),
        ("add_n", [Shaped((4,), "float32")], Shaped((4,), "float32")),
        ("fill", [], Shaped((2,), "int64")),
    ],
    ids=["integers", "float16", "float64", "broadcast", "one term", "fill of integers"],
)
def test_unsupported_nodes_are_refused(llvm: Registry, op: str, inputs: list[Shaped], result: Shaped) -> None:
    assert llvm.find(op, "cpu", "llvm").arrange({"value": 1.0}, inputs, [result], [None] * len(inputs)) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.1, -0.0, float("inf"), 1e-45])
@pytest.mark.parametrize("shape", [(), (7,), (1000, 3)])
def test_a_fill_keeps_every_bit_of_its_value(llvm: Registry, shape: tuple[int, ...], value: float, dtype: str) -> None:
    attributes = {"value": value, "shape": shape, "dtype": dtype}
    (made,) = run_node(llvm.find("fill", "cpu", "llvm"), attributes, []).outputs
    assert made.tobytes() == reference("fill", [], attributes)[0].tobytes()
