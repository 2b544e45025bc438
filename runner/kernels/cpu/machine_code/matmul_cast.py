"""Products of bfloat16 rows with float32 weights, which the kernel casts to bfloat16 itself.

For few rows, a product takes little more time than to read the weights. A separate cast reads them, writes them and
makes the product read them again; this kernel casts a block into the nearest caches and multiplies it there. The order
of a sum depends on shapes alone: pairs of terms from the first to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from runner.kernels.contract import Arrangement, Attributes, Bound, Buffers, Kernel, Layout, Spec, plain
from runner.kernels.cpu.machine_code import matmul_cast_backward, matmul_cast_forward, threads
from runner.kernels.cpu.machine_code.compiler import MachineCode
from runner.kernels.cpu.machine_code.elementwise import LIBRARY, PRIORITY
from runner.kernels.cpu.machine_code.matmul_cast_backward import Backward
from runner.kernels.cpu.machine_code.matmul_cast_forward import Forward
from runner.kernels.cpu.machine_code.pairs import pay
from runner.kernels.registry import Registry

OP = "matmul_cast"
DTYPES = frozenset({"bfloat16", "float32"})

MOST_ROWS = 64
"""Rows of x or dy up to which reading the weights is what takes time."""

MULTIPLE = 32
"""Of which both extents of the weights are multiples, as those of large layers are: there are no rests of blocks."""


def register(registry: Registry) -> None:
    """Add the kernel of op ``matmul_cast``, where it pays."""
    if pay():
        registry.add(Kernel(OP, "cpu", LIBRARY, PRIORITY, DTYPES, _arrange, _bind))


@dataclass(frozen=True)
class _Product:
    """x w or dy w', as the attributes say."""

    attributes: Attributes
    rows: int
    weights: tuple[int, int]
    dtype: str

    @property
    def is_backward(self) -> bool:
        """Whether it is dy w'."""
        return bool(self.attributes["transpose_b"])

    @property
    def forward(self) -> Forward:
        bias, relu = self.attributes["bias"], self.attributes["relu"]
        return Forward(self.rows, *self.weights, bias, relu, self.dtype)

    @property
    def backward(self) -> Backward:
        return Backward(self.rows, *self.weights, self.dtype)


def _product(attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> _Product:
    inner, columns = inputs[1].shape
    return _Product(attributes, inputs[0].shape[0], (inner, columns), outputs[0].dtype)


def _arrange(
    attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
) -> Arrangement | None:
    """Everything plain; None for other dtypes, other products, other extents and many rows."""
    x, w = inputs[:2]
    followed = attributes["bias"] or attributes["relu"]
    if attributes["cast_to"] != "bfloat16" or attributes["transpose_a"]:
        return None
    if attributes["transpose_b"] and followed:
        return None
    if not 0 < x.shape[0] <= MOST_ROWS or 0 in w.shape or any(extent % MULTIPLE for extent in w.shape):
        return None
    made = _product(attributes, inputs, outputs)
    scratch = made.backward.turned_bytes if made.is_backward else 0
    return Arrangement(tuple(map(plain, inputs)), tuple(map(plain, outputs)), scratch)


def _bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    specs = ([each.spec for each in operands] for operands in (buffers.inputs, buffers.outputs))
    made = _product(attributes, *specs)
    inner, columns = made.weights
    if not made.is_backward:
        operands = (*buffers.inputs, *buffers.outputs)
        return threads.over(_forward(made.forward), operands, columns, matmul_cast_forward.GRAIN)
    (dy, w), (dx,) = buffers.inputs, buffers.outputs
    backward = made.backward
    turned = replace(dy, layout=Layout("", backward.turned_bytes), data=buffers.scratch[: backward.turned_bytes])
    return [
        threads.over(_turning(backward), (dy, turned), columns // 2, matmul_cast_backward.TURNED_GRAIN),
        threads.over(_backward(backward), (turned, w, dx), inner, matmul_cast_backward.GRAIN),
    ]


@cache
def _forward(product: Forward) -> MachineCode:
    return MachineCode(matmul_cast_forward.write_module(product))


@cache
def _turning(product: Backward) -> MachineCode:
    return MachineCode(matmul_cast_backward.write_turning(product))


@cache
def _backward(product: Backward) -> MachineCode:
    return MachineCode(matmul_cast_backward.write_module(product))
