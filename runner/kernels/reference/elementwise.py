"""Chains of element-wise operations: the definition of their language."""

from __future__ import annotations

from runner.kernels.contract import Array
from runner.kernels.elementwise import evaluate, parse
from runner.kernels.registry import reference


@reference("elementwise")
def elementwise(*inputs: Array, program: str, outputs: tuple[int, ...]) -> tuple[Array, ...]:
    return evaluate(parse(program, len(inputs), outputs), inputs)
