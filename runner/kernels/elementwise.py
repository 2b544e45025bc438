"""A small language for element-wise programs, which the fusion pass creates and kernels of op ``elementwise`` run.

A program is a list of steps over numbered values: first the inputs, then the result of each step. Every step is one
correctly rounded operation or, in float32, a fixed sequence of such operations (:data:`DERIVED`). So the result of a
program equals the result of separate nodes bit for bit.

If its inputs are bfloat16, a program computes in float32, literals included, and rounds only its outputs to bfloat16.
A program of one step therefore equals its op bit for bit, and a longer program is more precise than separate nodes.

In text form, steps are joined by "; ". A step is a function and its operands, each a value number or # and a literal.
``mul 0 #0.9; sub 3 1`` with 3 inputs computes value 3 = 0.9 * input 0 and value 4 = value 3 - input 1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Operand = int | float
"""An int is a value number, a float is a literal."""


def erf(x: Array) -> Array:
    """Return the error function, computed by the C library for float64 and by :data:`DERIVED` for float32."""
    if np.result_type(x) == np.float64:
        return np.asarray(_ERF_OF_NUMBERS(x), np.float64)

    def apply(function: str, *operands: Any) -> Any:
        return FUNCTIONS[function][1](*(np.float32(o) if isinstance(o, float) else o for o in operands))

    return DERIVED["erf"](apply, x)


_ERF_OF_NUMBERS = np.frompyfunc(math.erf, 1, 1)

FUNCTIONS: dict[str, tuple[int, Callable[..., Array]]] = {
    "add": (2, np.add),
    "sub": (2, np.subtract),
    "mul": (2, np.multiply),
    "div": (2, np.divide),
    "maximum": (2, np.maximum),
    "minimum": (2, np.minimum),
    "neg": (1, np.negative),
    "square": (1, np.square),
    "sqrt": (1, np.sqrt),
    "abs": (1, np.absolute),
    "relu": (1, lambda x: np.maximum(x, 0)),
    "relu_gradient": (2, lambda dy, y: np.where(np.greater(y, 0), dy, np.zeros((), np.result_type(dy)))),
    "erf": (1, erf),
}
"""Function -> (number of operands, NumPy definition). Each function gives the results of the op of this name."""

Apply = Callable[..., Any]
"""(name of a function, operands) -> result, where an operand is a float for a literal, or a result."""

_ERF_LIMIT = 3.832506856900711
"""In float32, the error function of larger numbers is 1."""

_ERF_NUMERATOR = (
    *(2.123732201653183437883853912353515625e-06, 2.861979592125862836837768554687500000e-04),
    *(3.658048342913389205932617187500000000e-03, 5.243302136659622192382812500000000000e-02),
    *(1.874160766601562500000000000000000000e-01, 1.128379106521606445312500000000000000e00),
)
_ERF_DENOMINATOR = (
    *(3.89185734093189239501953125000e-05, 1.14329601638019084930419921875e-03),
    *(1.47520881146192550659179687500e-02, 1.12945675849914550781250000000e-01),
    *(4.99425798654556274414062500000e-01, 1.0),
)
"""Coefficients of polynomials in x * x, from the highest power to the constant."""


def _erf(apply: Apply, x: Any) -> Any:
    """Return the error function as x P(x * x) / Q(x * x), with a relative error below 5e-7 in float32.

    The polynomials P and Q are those of Eigen.
    """
    inside = apply("minimum", apply("maximum", x, -_ERF_LIMIT), _ERF_LIMIT)
    square = apply("square", inside)
    above, below = (
        reduce(lambda value, term: apply("add", apply("mul", value, square), term), others, first)
        for first, *others in (_ERF_NUMERATOR, _ERF_DENOMINATOR)
    )
    y = apply("div", apply("mul", inside, above), below)
    return apply("minimum", apply("maximum", y, -1.0), 1.0)


DERIVED: dict[str, Callable[..., Any]] = {"erf": _erf}
"""Name of a function -> its float32 definition in terms of other functions: (apply, *operands) -> result.

Every device computes a derived function by the same operations, so all devices give the same bits.
"""


@dataclass(frozen=True)
class Step:
    """One operation: a function of FUNCTIONS and its operands."""

    function: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Program:
    """A program. inputs: number of inputs. steps: in execution order. outputs: numbers of the returned values."""

    inputs: int
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    def __post_init__(self) -> None:
        for position, step in enumerate(self.steps):
            if step.function not in FUNCTIONS or len(step.operands) != FUNCTIONS[step.function][0]:
                raise ValueError(f"step {position} of an element-wise program: no {step.function!r} of {step.operands}")
            known = self.inputs + position
            if any(isinstance(operand, int) and not 0 <= operand < known for operand in step.operands):
                raise ValueError(
                    f"step {position} of an element-wise program reads {step.operands}, expected 0..{known - 1}"
                )
        count = self.inputs + len(self.steps)
        if not self.outputs or any(not self.inputs <= number < count for number in self.outputs):
            raise ValueError(f"outputs {self.outputs} of an element-wise program: expected the numbers of step results")

    @property
    def text(self) -> str:
        """Return the steps as text."""
        return "; ".join(" ".join((step.function, *map(_operand_text, step.operands))) for step in self.steps)

    @property
    def is_derived(self) -> bool:
        """Whether a step is a function of DERIVED."""
        return any(step.function in DERIVED for step in self.steps)

    def widened(self, inputs: Sequence[bool]) -> list[bool]:
        """Return for each value whether it may differ between elements. inputs: the same flags for the inputs."""
        wide = list(inputs)
        for step in self.steps:
            wide.append(any(wide[operand] for operand in step.operands if isinstance(operand, int)))
        return wide


def parse(text: str, inputs: int, outputs: Sequence[int]) -> Program:
    """Parse the text of a program; raises ValueError for the first invalid step."""
    steps = []
    for part in text.split("; "):
        function, *operands = part.split(" ")
        try:
            steps.append(Step(function, tuple(float(o[1:]) if o.startswith("#") else int(o) for o in operands)))
        except ValueError:
            raise ValueError(f"step {part!r} of an element-wise program: expected value numbers or #literals") from None
    return Program(inputs, tuple(steps), tuple(outputs))


def written(attributes: Mapping[str, Any], inputs: int) -> Program:
    """Return the program that the attributes of a node with ``inputs`` inputs contain."""
    return parse(attributes["program"], inputs, attributes["outputs"])


def single(function: str, attributes: Mapping[str, Any], inputs: int) -> Program:
    """Return the program that applies one function to the inputs; the attributes are not used."""
    return Program(inputs, (Step(function, tuple(range(inputs))),), (inputs,))


def sum_of(inputs: int) -> Program:
    """Return the program that adds two or more inputs from left to right."""
    others = [Step("add", (inputs + term - 2, term)) for term in range(2, inputs)]
    return Program(inputs, (Step("add", (0, 1)), *others), (2 * inputs - 2,))


def evaluate(program: Program, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Run a program with NumPy; all kernels must give the same result. Each input has shape () or one common shape."""
    dtype = inputs[0].dtype
    compute = np.dtype(computed_in(dtype.name)).type
    values: list[Any] = [np.asarray(array, compute) for array in inputs]
    for step in program.steps:
        _, function = FUNCTIONS[step.function]
        values.append(function(*(values[o] if isinstance(o, int) else compute(o) for o in step.operands)))
    return tuple(np.asarray(values[number], dtype) for number in program.outputs)


def computed_in(dtype: str) -> str:
    """Return the dtype of computations on values of ``dtype``: float32 for bfloat16, else ``dtype``."""
    return "float32" if dtype == "bfloat16" else dtype


def _operand_text(operand: Operand) -> str:
    return str(operand) if isinstance(operand, int) else f"#{operand!r}"
