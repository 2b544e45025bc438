"""Analysis of element-wise programs: the shapes of values, and whether zero inputs give zero outputs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.kernels.cpu.machine_code.elementwise import keeps_zeros
from runner.kernels.elementwise import evaluate, parse
from tests.kernels.cpu.programs import Case, cases

SCALARS = st.floats(1e-3, 1e3) | st.floats(-1e3, -1e-3)


@given(case=cases(), scalars=st.lists(SCALARS, min_size=5, max_size=5))
def test_zeros_stay_zeros_for_all_scalars(case: Case, scalars: list[float]) -> None:
    if keeps_zeros(case.program, case.wide, "float64"):
        given = zip(case.wide, scalars, strict=False)
        inputs = [np.zeros(1) if wide else np.array(scalar) for wide, scalar in given]
        with np.errstate(all="ignore"):
            assert all((output == 0).all() for output in evaluate(case.program, inputs))


KEEPING = {
    "momentum": "mul 0 #0.9; mul 1 2; sub 3 4",
    "adam": "mul 0 #0.9; mul 1 #0.1; add 3 4; mul 5 2; square 1; mul 7 2; sqrt 8; add 9 #1e-08; div 6 10",
    "a positive offset under the root": "add 0 #0.1; sqrt 3; div 1 4",
    "relu": "relu 0; relu_gradient 1 3",
    "clipping": "maximum 2 #1.0; div #1.0 3; sub 2 2; add 4 5; mul 0 6",
    "division by a scalar": "div 0 2",
    "extremes": "maximum 0 1; minimum 3 #2.0; neg 4; abs 5",
    "a gradient that does not pass": "sqrt #-1.0; relu_gradient 0 3",
}

SPOILING = {
    "an offset": "add 0 #1.0",
    "a scalar offset": "sub 0 2",
    "0 / 0": "div 0 1",
    "division by what may be zero": "sub 2 #1.0; div 0 3",
    "root of a negative number": "sub 0 #0.1; sqrt 3; mul 0 4",
    "root of a scalar": "sqrt 2; mul 0 3",
    "division by a scalar cut off": "relu 2; div 0 3",
    "division by its opposite cut off": "neg 2; relu 3; div 0 4",
    "a gradient that may pass": "div 2 0; relu_gradient 2 3; add 0 4",
    "a literal that is not finite": "mul 0 #inf",
    "maximum with a literal": "maximum 0 #0.5",
    "a scalar that may be positive": "relu 2; add 0 3",
}


@pytest.mark.parametrize("name", KEEPING)
def test_programs_that_keep_zeros(name: str) -> None:
    assert _keeps(KEEPING[name])


@pytest.mark.parametrize("name", SPOILING)
def test_programs_that_spoil_zeros(name: str) -> None:
    assert not _keeps(SPOILING[name])


def test_every_output_must_keep_them() -> None:
    assert not keeps_zeros(parse("neg 0; add 0 #1.0", 1, (1, 2)), [True], "float32")
    assert keeps_zeros(parse("add 0 #1.0; neg 0", 1, (2,)), [True], "float32")


def test_a_literal_is_rounded_to_its_dtype() -> None:
    small, large = parse("add 0 #1e-60; div 0 1", 1, (2,)), parse("mul 0 #1e60", 1, (1,))
    assert keeps_zeros(small, [True], "float64")
    assert not keeps_zeros(small, [True], "float32")
    assert keeps_zeros(large, [True], "float64")
    assert not keeps_zeros(large, [True], "float32")


def _keeps(text: str) -> bool:
    """Analyse a program with tensors 0 and 1 and scalar 2, whose last step is its output."""
    return keeps_zeros(parse(text, 3, (3 + text.count(";"),)), [True, True, False], "float32")


@given(cases())
def test_values_are_wide_that_have_the_shape_of_a_wide_input(case: Case) -> None:
    count = len(case.program.steps)
    every = replace(case.program, outputs=tuple(range(case.program.inputs, case.program.inputs + count)))
    inputs = [np.ones((3,) if wide else ()) for wide in case.wide]
    with np.errstate(all="ignore"):
        values = [*inputs, *evaluate(every, inputs)]
    assert case.program.widened(case.wide) == [value.shape == (3,) for value in values]


def test_values_computed_from_scalars_and_literals_are_scalars() -> None:
    program = parse("mul 1 #0.9; sub #1.0 2; add 0 3", 2, (4,))
    assert program.widened([True, False]) == [True, False, False, False, True]
