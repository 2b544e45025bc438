"""Random element-wise programs, and inputs with special values."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from runner.kernels.contract import Array
from runner.kernels.elementwise import FUNCTIONS, Operand, Program, Step

# On other CPUs NumPy may return the other of two zeros as the maximum.
_SIGNED_ZERO = [-0.0] if platform.machine() in ("x86_64", "AMD64") else []
SPECIAL = [0.0, *_SIGNED_ZERO, 1.0, -1.5, np.nan, np.inf, -np.inf, 1e-40, -3e-320, 1e30, -1e300]

_LITERALS = st.sampled_from([float(value) for value in SPECIAL]) | st.floats(-4, 4)


@dataclass(frozen=True)
class Case:
    """A program, and which of its inputs have the shape of the result."""

    program: Program
    wide: tuple[bool, ...]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Programs of all functions; their outputs depend on an input that is no scalar."""
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
    # Shrinking prefers the latest values.
    numbers: st.SearchStrategy[Operand] = st.integers(0, known - 1).map(lambda back: known - 1 - back)
    count, _ = FUNCTIONS[function]
    return Step(function, tuple(draw(numbers | _LITERALS) for _ in range(count)))


def awkward(seed: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Normal numbers, a quarter of them replaced by special ones."""
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        special = np.array(SPECIAL).astype(dtype)
    values = rng.standard_normal(shape).astype(dtype)
    return np.asarray(np.where(rng.random(shape) < 0.25, rng.choice(special, shape), values))


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays agree bit for bit; every NaN is the same."""
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    numbers = ~np.isnan(a)
    return bool(np.array_equal(numbers, ~np.isnan(b)) and a[numbers].tobytes() == b[numbers].tobytes())


def all_same_bits(found: Sequence[Array], expected: Sequence[Array]) -> bool:
    """``same_bits`` of each pair."""
    return all(same_bits(a, b) for a, b in zip(found, expected, strict=True))
