"""Element-wise comparison and choice, of every dtype; extremes are functions of element-wise programs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from runner.kernels.contract import Attributes, Kernel, Spec
from runner.kernels.gpu.element_kernels import element_kernel
from runner.kernels.gpu.element_loops import Elements
from runner.kernels.gpu.runtime import Runtime

_OPERATORS = {"greater": ">", "greater_equal": ">=", "less": "<", "equal": "=="}


def kernels(runtime: Runtime) -> list[Kernel]:
    """Comparisons, which give truth values, and the choice by one."""
    comparisons = [element_kernel(runtime, op, partial(_compare, sign)) for op, sign in _OPERATORS.items()]
    return [*comparisons, element_kernel(runtime, "select", _select)]


def _compare(operator: str, attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Elements:
    return Elements((inputs[0].dtype,) * 2, ("bool",), (), (f"x0 {operator} x1",))


def _select(attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Elements:
    dtype = outputs[0].dtype
    return Elements(("bool", dtype, dtype), (dtype,), (), ("x0 ? x1 : x2",))
