"""Activation functions of single elements; relu and its gradient are functions of element-wise programs."""

from __future__ import annotations

from functools import partial

from runner.kernels.contract import Kernel
from runner.kernels.gpu.arithmetic import unary_elements
from runner.kernels.gpu.element_kernels import element_kernel
from runner.kernels.gpu.runtime import Runtime


def kernels(runtime: Runtime) -> list[Kernel]:
    """Sigmoid and hyperbolic tangent."""
    return [element_kernel(runtime, op, partial(unary_elements, op)) for op in ("sigmoid", "tanh")]
