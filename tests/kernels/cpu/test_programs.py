"""Analysis of element-wise programs: the shapes of values, and whether zero inputs give zero outputs."""

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.kernels.contract import Array
from runner.kernels.cpu.machine_code.elementwise import keeps_zeros
from runner.kernels.elementwise import FUNCTIONS, Operand, Program, Step, evaluate, parse

# On other CPUs, NumPy may return a zero of the other sign as the maximum.
_SIGNED_ZERO = [-0.0] if platform.machine() in ("x86_64", "AMD64") else []
SPECIAL = [0.0, *_SIGNED_ZERO, 1.0, -1.5, np.nan, np.inf, -np.inf, 1e-40, -3e-320, 1e30, -1e300]

_LITERALS = st.sampled_from([float(value) for value in SPECIAL]) | st.floats(-4, 4)


@dataclass(frozen=True)
class Case:
    """A program, and for each input whether it has the shape of the result."""

    program: Program
    wide: tuple[bool, ...]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a program of any functions, each of whose outputs depends on an input that is not a scalar."""
    inputs = draw(st.integers(1, 5))
    first = draw(st.integers(0, inputs - 1))
    wide = [k == first or draw(st.booleans()) for k in range(inputs)]
    known = list(wide)
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 10))):
        step = draw(_steps(len(known)))
        steps.append(step)
        known.append(any(known[operand] for operand in step.operands if isinstance(operand, int)))
    steps.append(Step("neg", (first,)))
    known.append(True)
    able = [number for number in range(inputs, len(known)) if known[number]]
    outputs = draw(st.lists(st.sampled_from(able), min_size=1, max_size=3))
    return Case(Program(inputs, tuple(steps), tuple(outputs)), tuple(wide))


@st.composite
def _steps(draw: st.DrawFn, known: int) -> Step:
    function = draw(st.sampled_from(sorted(FUNCTIONS)))
    # Numbers are counted back from the latest value, which shrinking then prefers.
    numbers: st.SearchStrategy[Operand] = st.integers(0, known - 1).map(lambda back: known - 1 - back)
    count, _ = FUNCTIONS[function]
    return Step(function, tuple(draw(numbers | _LITERALS) for _ in range(count)))


def awkward(seed: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Return normally distributed numbers, a quarter of them replaced by special values."""
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        special = np.array(SPECIAL).astype(dtype)
    values = rng.standard_normal(shape).astype(dtype)
    return np.asarray(np.where(rng.random(shape) < 0.25, rng.choice(special, shape), values))


def same_bits(a: Array, b: Array) -> bool:
    """Return whether two arrays are equal bit for bit; all NaN count as equal."""
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    numbers = ~np.isnan(a)
    return bool(np.array_equal(numbers, ~np.isnan(b)) and a[numbers].tobytes() == b[numbers].tobytes())


def all_same_bits(found: Sequence[Array], expected: Sequence[Array]) -> bool:
    """Return whether ``same_bits`` holds for each pair."""
    return all(same_bits(a, b) for a, b in zip(found, expected, strict=True))


SCALARS = st.sampled_from([0.0, math.inf, -math.inf, math.nan]) | st.floats(1e-3, 1e3) | st.floats(-1e3, -1e-3)


@given(case=cases(), scalars=st.lists(SCALARS, min_size=5, max_size=5))
def test_zeros_stay_zeros_for_all_scalars(case: Case, scalars: list[float]) -> None:
    if keeps_zeros(case.program, case.wide, "float64"):
        given = zip(case.wide, scalars, strict=False)
        inputs = [np.zeros(1) if wide else np.array(scalar) for wide, scalar in given]
        with np.errstate(all="ignore"):
            assert all((output == 0).all() for output in evaluate(case.program, inputs))


KEEPING = {
    "momentum": "mul 0 #0.9; mul 1 #0.1; sub 3 4",
    "adam": "mul 0 #0.9; mul 1 #0.1; add 3 4; mul 5 #0.01; square 1; mul 7 #0.02; sqrt 8; add 9 #1e-08; div 6 10",
    "a positive offset under the root": "add 0 #0.1; sqrt 3; div 1 4",
    "relu": "relu 0; relu_gradient 1 3",
    "extremes": "maximum 0 1; minimum 3 #2.0; neg 4; abs 5",
    "the error function": "erf 0; mul 3 #2.0",
    "a gradient that does not pass": "sqrt #-1.0; relu_gradient 0 3",
    "a gradient that a scalar may stop": "relu_gradient 0 2",
}

SPOILING = {
    "an offset": "add 0 #1.0",
    "a scalar offset": "sub 0 2",
    "a scalar factor that may be infinite": "mul 0 2",
    "0 / 0": "div 0 1",
    "division by a scalar": "div 0 2",
    "division by a value that may be zero": "sub 2 #1.0; div 0 3",
    "root of a negative number": "sub 0 #0.1; sqrt 3; mul 0 4",
    "root of a scalar": "sqrt 2; mul 0 3",
    "division by the ReLU of a scalar": "relu 2; div 0 3",
    "division by the ReLU of a negated scalar": "neg 2; relu 3; div 0 4",
    "a gradient that may pass": "div 2 0; relu_gradient 2 3; add 0 4",
    "a literal that is not finite": "mul 0 #inf",
    "maximum with a literal": "maximum 0 #0.5",
    "a scalar that may be positive": "relu 2; add 0 3",
    "division by a square that underflows": "add 0 #1e-30; square 3; div 0 4",
    "a square that overflows": "add 0 #1e+30; square 3; mul 0 4",
    "a constant gradient that may pass": "relu_gradient #1.0 2; add 0 3",
}


@pytest.mark.parametrize("name", KEEPING | SPOILING)
def test_programs_that_keep_zeros_are_recognized(name: str) -> None:
    """The inputs are tensors 0 and 1 and scalar 2. The output is the result of the last step."""
    text = (KEEPING | SPOILING)[name]
    program = parse(text, 3, (3 + text.count(";"),))
    assert keeps_zeros(program, [True, True, False], "float32") == (name in KEEPING)


def test_every_output_must_keep_zeros() -> None:
    assert not keeps_zeros(parse("neg 0; add 0 #1.0", 1, (1, 2)), [True], "float32")
    assert keeps_zeros(parse("add 0 #1.0; neg 0", 1, (2,)), [True], "float32")


def test_a_literal_is_rounded_to_its_dtype() -> None:
    small, large = parse("add 0 #1e-60; div 0 1", 1, (2,)), parse("mul 0 #1e60", 1, (1,))
    assert keeps_zeros(small, [True], "float64")
    assert not keeps_zeros(small, [True], "float32")
    assert keeps_zeros(large, [True], "float64")
    assert not keeps_zeros(large, [True], "float32")


@given(cases())
def test_values_with_the_shape_of_a_wide_input_are_wide(case: Case) -> None:
    count = len(case.program.steps)
    every = replace(case.program, outputs=tuple(range(case.program.inputs, case.program.inputs + count)))
    inputs = [np.ones((3,) if wide else ()) for wide in case.wide]
    with np.errstate(all="ignore"):
        values = [*inputs, *evaluate(every, inputs)]
    assert case.program.widened(case.wide) == [value.shape == (3,) for value in values]
