"""The language of element-wise programs: which values have the shape of the result."""

from dataclasses import replace

import numpy as np
from hypothesis import given

from runner.kernels.elementwise import evaluate, parse
from tests.kernels.cpu.programs import Case, cases


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
