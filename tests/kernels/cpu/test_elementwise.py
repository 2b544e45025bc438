"""Element-wise kernels in machine code equal ``evaluate``, the definition of programs, bit for bit, also in place."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from runner.engine.run.kernel_table import load_kernels
from runner.kernels.contract import Arrangement, Array, Attributes, Buffers, Kernel, Layout, NativeCall, plain
from runner.kernels.cpu.machine_code.compiler import MachineCode
from runner.kernels.cpu.machine_code.loops import ElementLoop, write_module
from runner.kernels.cpu.machine_code.threads import PARALLEL_BYTES, call
from runner.kernels.elementwise import FUNCTIONS, Program, evaluate, parse
from tests.kernels.cpu.test_programs import Case, all_same_bits, awkward, cases
from tests.kernels.harness import Shaped, arranged, call_bound, filled, holding, invoke, reference, run_node, run_shared

DTYPES = ["float32", "bfloat16"]
WITH_SCALARS_ALONE = [*DTYPES, "float64"]
PARALLEL = PARALLEL_BYTES // 4 + 5
"""A number of elements that every program divides among threads, not a multiple of the vector length."""

MOMENTUM = parse("mul 1 #0.9; mul 2 3; sub 4 5; add 0 6", 4, (6, 7))
"""Inputs: parameters, velocity, gradient, learning rate. Outputs: velocity, parameters."""


def kernel(op: str = "elementwise") -> Kernel:
    return load_kernels().find(op, "cpu", "llvm")


def attributes_of(program: Program) -> Attributes:
    return {"program": program.text, "outputs": program.outputs}


def arrays_of(size: int, dtype: str, wide: tuple[bool, ...] = (True, True, True, False), seed: int = 1) -> list[Array]:
    """Return an array of ``size`` elements or a scalar for each input; by default, for the inputs of MOMENTUM."""
    return [awkward(seed + k, (size,) if each else (), dtype) for k, each in enumerate(wide)]


def expected(program: Program, arrays: list[Array]) -> tuple[Array, ...]:
    with np.errstate(all="ignore"):
        return evaluate(program, arrays)


def require_definition(program: Program, arrays: list[Array]) -> None:
    """Require that the kernel gives the same bits as ``evaluate``, which defines programs."""
    found = run_node(kernel(), attributes_of(program), arrays).outputs
    assert all_same_bits(found, expected(program, arrays)), program.text


@settings(max_examples=50)
@given(case=cases(), size=st.integers(1, 40), dtype=st.sampled_from(WITH_SCALARS_ALONE), seed=st.integers(0, 1000))
def test_any_program_equals_its_definition_bit_for_bit(case: Case, size: int, dtype: str, seed: int) -> None:
    assume(dtype != "float64" or not case.program.is_derived)
    wide = (False,) * len(case.wide) if dtype == "float64" else case.wide
    require_definition(case.program, arrays_of(size, dtype, wide, seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 17, 1000, PARALLEL])
def test_programs_of_any_size_equal_the_definition(size: int, dtype: str) -> None:
    require_definition(MOMENTUM, arrays_of(size, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_vectors_of_any_width_give_the_results_of_the_definition(dtype: str, vector_bytes: int) -> None:
    arrays, result = arrays_of(45, dtype), Shaped((45,), dtype)
    code = MachineCode(write_module(ElementLoop(MOMENTUM, dtype, (True, True, True, False)), vector_bytes))
    operands = [*map(holding, arrays), *(filled(result, plain(result)) for _ in range(2))]
    invoke(call(code, [operand.address for operand in operands], 45, 16, operands, parallel=False))
    assert all_same_bits([operand.array for operand in operands[4:]], expected(MOMENTUM, arrays))


MANY_READS = "; ".join(f"mul {k} #1.5" for k in range(40))
MANY_STEPS = "; ".join(f"sub {k + 39} {k}" for k in range(1, 40))


@pytest.mark.parametrize(
    ("program", "arrays"),
    [
        *((MOMENTUM, arrays_of(1, dtype, (False,) * 4)) for dtype in WITH_SCALARS_ALONE),
        # More values than registers.
        (parse(f"{MANY_READS}; {MANY_STEPS}", 40, (40, 118)), arrays_of(100, "float32", (True,) * 40)),
        # A literal differs from a value number.
        *(
            (parse(f"add 0 {operand}", 2, (2,)), arrays_of(20, "float32", (True, True)))
            for operand in ("1", "#1.0", "#0.0", "#-0.0")
        ),
    ],
)
def test_programs_of_scalars_and_many_values_equal_the_definition(program: Program, arrays: list[Array]) -> None:
    require_definition(program, arrays)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [21, PARALLEL])
@pytest.mark.parametrize("places", [(0, None), (1, None), (2, None), (None, 0), (None, 1), (1, 0), (0, 1), (2, 1)])
def test_outputs_may_share_memory_with_any_inputs(places: tuple[int | None, int | None], size: int, dtype: str) -> None:
    arrays = arrays_of(size, dtype)
    found = run_shared(kernel(), attributes_of(MOMENTUM), arrays, places)
    assert all_same_bits(found, expected(MOMENTUM, arrays))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_threads_gives_the_same_bits(count: int, dtype: str) -> None:
    with threadpool_limits(count, user_api="openmp"):
        require_definition(MOMENTUM, arrays_of(PARALLEL, dtype))


def test_threads_compute_every_element_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.kernels.cpu.machine_code.threads.PARALLEL_BYTES", 0)
    with threadpool_limits(3, user_api="openmp"):
        for size in range(120):
            increment = attributes_of(parse("add 0 #1.0", 1, (1,)))
            (counter,) = run_shared(kernel(), increment, [np.zeros(size, np.float32)], [0])
            assert (counter == 1).all(), f"{size} elements"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_ops_of_a_single_function_equal_the_reference(function: str, dtype: str) -> None:
    assert_like_reference(function, [awkward(k, (3, 50), dtype) for k in range(FUNCTIONS[function][0])])


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


def test_derived_functions_of_scalars_in_float64_are_refused() -> None:
    scalar = Shaped((), "float64")
    for function, is_supported in (("erf", False), ("neg", True)):
        found = kernel(function).arrange({}, [scalar], [scalar], [plain(scalar)])
        assert (found is not None) == is_supported


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("terms", [2, 3, 5])
def test_many_terms_are_added_from_the_left(terms: int, dtype: str) -> None:
    assert_like_reference("add_n", [awkward(k, (40,), dtype) for k in range(terms)])


@pytest.mark.parametrize("function", ["square", "sqrt", "neg"])
def test_all_bfloat16_numbers_equal_the_reference(function: str) -> None:
    assert_like_reference(function, [np.arange(1 << 16, dtype=np.uint16).view("bfloat16")])


def test_bfloat16_is_rounded_once_with_ties_to_even() -> None:
    one, small = np.ones(4, "bfloat16"), (2.0 ** -np.arange(7, 11)).astype("bfloat16")
    program = parse("add 0 1; sub 2 0; add 2 1", 2, (2, 3, 4))
    sums, differences, twice = run_node(kernel(), attributes_of(program), [one, small]).outputs
    last = 2.0**-7  # the step between neighbouring bfloat16 numbers from 1 to 2
    np.testing.assert_array_equal(sums.astype("float64"), [1 + last, 1, 1, 1])
    np.testing.assert_array_equal(differences, small)
    np.testing.assert_array_equal(twice.astype("float64"), [1 + 2 * last, 1 + last, 1, 1])


def assert_like_reference(op: str, arrays: list[Array]) -> None:
    """Require that the kernel gives the bits of the reference kernel."""
    with np.errstate(all="ignore"):
        found = run_node(kernel(op), {}, arrays).outputs
    assert all_same_bits(found, reference(op, arrays))


def test_a_bound_call_keeps_its_arguments_alive() -> None:
    spec = Shaped((4,), "float32")
    operand = filled(spec, plain(spec))
    arrangement = arranged(kernel("neg"), {}, [spec], [spec])
    bound = kernel("neg").bind({}, arrangement, Buffers((operand,), (operand,), operand.data[:0]))
    assert isinstance(bound, NativeCall)
    # If the call's array of addresses were freed, one of these arrays of the same size would reuse its memory.
    others = [np.zeros(2, np.intp) for _ in range(100)]
    assert all(other.ctypes.data not in bound.arguments for other in others)


IMAGE = Shaped((2, 3, 5, 5), "float32")
SCALAR = Shaped((), "float32")
PLAIN = plain(IMAGE)
PADDED = Layout("aBcd16b", 2 * 16 * 25 * 4)
DENSE = Layout("acdb", IMAGE.nbytes)


def layouts(text: str, offered: list[Layout | None], outputs: tuple[int, ...]) -> Arrangement:
    """Return the arrangement of a program over images, and over scalars where ``plain(SCALAR)`` is offered."""
    inputs = [SCALAR if offer == plain(SCALAR) else IMAGE for offer in offered]
    return arranged(kernel(), {"program": text, "outputs": outputs}, inputs, [IMAGE] * len(outputs), offered)


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
    text: str, outputs: tuple[int, ...], offered: list[Layout | None], taken: Layout
) -> None:
    found = layouts(text, offered, outputs)
    assert {*found.inputs, *found.outputs} == {taken}


def test_scalars_stay_plain_and_outputs_may_share_memory_with_images() -> None:
    found = layouts("mul 0 1; add 3 2", [DENSE, plain(SCALAR), None], (3, 4))
    assert (found.inputs, found.outputs) == ((DENSE, plain(SCALAR), DENSE), (DENSE, DENSE))
    assert set(found.in_place) == {(0, 0), (0, 1), (2, 0), (2, 1)}
    # An infinite scalar would turn the zeros in the padding into NaN, which convolutions would read.
    assert {*layouts("mul 0 1", [PADDED, plain(SCALAR)], (2,)).outputs} == {PLAIN}


def test_padding_is_computed_like_other_elements() -> None:
    arrangement = layouts("mul 0 #3.0", [PADDED], (1,))
    source, result = filled(IMAGE, PADDED), filled(IMAGE, PADDED)
    numbers, tripled = (operand.data.view(np.float32) for operand in (source, result))
    numbers[:] = np.arange(len(numbers))
    call_bound(kernel(), attributes_of(parse("mul 0 #3.0", 1, (1,))), arrangement, [source], [result])
    np.testing.assert_array_equal(tripled, 3 * np.arange(len(numbers)))


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
def test_unsupported_nodes_are_refused(op: str, inputs: list[Shaped], result: Shaped) -> None:
    assert kernel(op).arrange({"value": 1.0}, inputs, [result], [None] * len(inputs)) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.1, -0.0, float("inf"), 1e-45])
@pytest.mark.parametrize("shape", [(), (7,), (1000, 3)])
def test_a_fill_keeps_every_bit_of_its_value(shape: tuple[int, ...], value: float, dtype: str) -> None:
    attributes = {"value": value, "shape": shape, "dtype": dtype}
    (made,) = run_node(kernel("fill"), attributes, []).outputs
    assert made.tobytes() == reference("fill", [], attributes)[0].tobytes()
