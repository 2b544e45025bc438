"""Arithmetic beyond the language of element-wise programs: functions that no IEEE operation gives.

They are those of CUDA's mathematics, in float32 for bfloat16: within a few units in the last place of the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from runner.kernels.contract import Attributes, Kernel, Spec
from runner.kernels.gpu.element_kernels import element_kernel
from runner.kernels.gpu.element_loops import Elements
from runner.kernels.gpu.expressions import expression, literal
from runner.kernels.gpu.runtime import Runtime
from runner.kernels.gpu.source import computed_in


def kernels(runtime: Runtime) -> list[Kernel]:
    """Exponential, logarithms, sign and power."""
    unary = [element_kernel(runtime, op, partial(unary_elements, op)) for op in ("exp", "log", "log1p", "sign")]
    return [*unary, element_kernel(runtime, "pow", _power)]


def unary_elements(function: str, attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Elements:
    """One function of one input."""
    dtype = inputs[0].dtype
    return Elements((dtype,), (dtype,), (), (expression(function, computed_in(dtype), "x0"),))


def _power(attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Elements:
    """Squares are one correctly rounded product."""
    dtype, exponent = inputs[0].dtype, attributes["exponent"]
    computed = computed_in(dtype)
    if exponent == 2.0:
        return Elements((dtype,), (dtype,), (), (expression("square", computed, "x0"),))
    return Elements((dtype,), (dtype,), (), (expression("pow", computed, "x0", literal(exponent, computed)),))
