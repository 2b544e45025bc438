"""Matrix multiplication: tiles of our own, or cuBLAS, each with what may follow a product in a dense layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from runner.kernels.gpu.calls import StreamCall, blocks_for, in_order, launch
from runner.kernels.gpu.runtime import Argument, Function, Runtime, Stream
from runner.kernels.gpu.source import computed_in, text
from runner.kernels.registry import (
    FLOATS,
    Arrangement,
    Attributes,
    Buffers,
    Kernel,
    Layout,
    Operand,
    Spec,
    address_of,
    numpy_dtype,
    plain,
)

TILE = 64
"""Rows and columns of the tile that a block of our own kernel makes."""

ALIGNMENT = 256
"""Bytes: of a card's allocations, and of what libraries are lent."""

_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Product:
    """A B of row-major matrices, A and B stored or stored transposed.

    a, b: shapes as stored. dtype: of a, b and bias. result: dtype of the result. bias, relu: whether a bias per column
    is added, and whether max(y, 0) is taken then.
    """

    a: tuple[int, int]
    b: tuple[int, int]
    transpose_a: bool
    transpose_b: bool
    dtype: str
    result: str
    bias: bool = False
    relu: bool = False

    @property
    def rows(self) -> int:
        """Of the result."""
        return self.a[1 if self.transpose_a else 0]

    @property
    def terms(self) -> int:
        """Of each sum."""
        return self.a[0 if self.transpose_a else 1]

    @property
    def columns(self) -> int:
        """Of the result."""
        return self.b[0 if self.transpose_b else 1]

    @property
    def size(self) -> int:
        """Elements of the result."""
        return self.rows * self.columns


@dataclass(frozen=True)
class ColumnMajor:
    """A product as BLAS takes it: C = op(first) op(second), matrices column by column.

    transpose_first, transpose_second: op. m, n: rows and columns of C. k: the inner extent. first_leading,
    second_leading, leading: distance between columns of first, second and C, in elements.
    """

    transpose_first: bool
    transpose_second: bool
    m: int
    n: int
    k: int
    first_leading: int
    second_leading: int
    leading: int


def column_major(product: Product) -> ColumnMajor:
    """The same product with b as ``first`` and a as ``second``.

    What is row-major is the transpose of what column-major readers see, and (A B)' = B' A'.
    """
    return ColumnMajor(
        product.transpose_b,
        product.transpose_a,
        product.columns,
        product.rows,
        product.terms,
        product.b[1],
        product.a[1],
        product.columns,
    )


class Blas(Protocol):
    """What ``runtime.library("cublas")`` offers.

    tf32: whether float32 factors may be rounded to 10 bits of mantissa. workspace_bytes: memory that a product wants.
    """

    tf32: bool
    workspace_bytes: int

    def gemm(
        self,
        stream: Stream,
        shape: ColumnMajor,
        dtypes: tuple[str, str],
        first: int,
        second: int,
        target: int,
        workspace: int,
    ) -> None:
        """Put C = op(first) op(second) on a stream, for addresses of matrices and of memory to work in.

        dtypes: of the factors and of C: (float32, float32), (float64, float64), (bfloat16, bfloat16 or float32).
        bfloat16 is summed in float32 and rounded once. Allocates nothing; the order of sums is the same every time.
        """
        ...


class Multiplier(Protocol):
    """Who computes products."""

    library: str
    priority: int

    def takes(self, product: Product) -> bool:
        """Whether it can compute a product."""
        ...

    def scratch_bytes(self, product: Product) -> int:
        """Memory that it may spoil."""
        ...

    def call(self, product: Product, a: int, b: int, bias: int, y: int, scratch: int) -> StreamCall:
        """The call that computes it, from addresses; bias is read only where the product has one."""
        ...


def kernels(runtime: Runtime) -> list[Kernel]:
    """matmul of each library that is there."""
    return [_matmul(multiplier) for multiplier in multipliers(runtime)]


def multipliers(runtime: Runtime) -> list[Multiplier]:
    """Our own kernel, and cuBLAS where the runtime has it."""
    library = runtime.library("cublas")
    return [OwnProducts(runtime)] if library is None else [OwnProducts(runtime), BlasProducts(runtime, library)]


def product_of(a: Spec, b: Spec, attributes: Attributes, **more: Any) -> Product:
    """The product of two matrices that a node's attributes describe; more: fields beyond those of every product."""
    (rows, columns), (inner, width) = a.shape, b.shape
    turned = attributes["transpose_a"], attributes["transpose_b"]
    return Product((rows, columns), (inner, width), *turned, a.dtype, **{"result": a.dtype, **more})


def arrange_product(
    multiplier: Multiplier, product: Product, inputs: Sequence[Spec], outputs: Sequence[Spec]
) -> Arrangement | None:
    """Everything in C order, with the multiplier's memory; None where it does not take the product."""
    if not multiplier.takes(product):
        return None
    scratch = multiplier.scratch_bytes(product)
    return Arrangement(tuple(map(plain, inputs)), tuple(map(plain, outputs)), scratch)


def aligned(nbytes: int) -> int:
    """The next multiple of what libraries want of an address."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _matmul(multiplier: Multiplier) -> Kernel:
    def arrange(
        attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
    ) -> Arrangement | None:
        return arrange_product(multiplier, product_of(*inputs, attributes), inputs, outputs)

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        a, b = buffers.inputs
        return bound_product(multiplier, product_of(a.spec, b.spec, attributes), buffers)

    return Kernel("matmul", "gpu", multiplier.library, multiplier.priority, FLOATS, arrange, bind)


def bound_product(multiplier: Multiplier, product: Product, buffers: Buffers) -> StreamCall:
    """The call for a node whose inputs are a, b and perhaps a bias, and whose output is the product."""
    a, b, *bias = (operand.address for operand in buffers.inputs)
    y: Operand = buffers.outputs[0]
    return multiplier.call(product, a, b, bias[0] if bias else 0, y.address, address_of(buffers.scratch))


class OwnProducts:
    """Tiles in shared memory: every dtype, every shape."""

    library = "cuda"
    priority = 0

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def takes(self, product: Product) -> bool:
        return True

    def scratch_bytes(self, product: Product) -> int:
        return 0

    def call(self, product: Product, a: int, b: int, bias: int, y: int, scratch: int) -> StreamCall:
        fixed: list[Argument] = [np.uintp(address) for address in (a, b, bias, y)]
        fixed += [np.int64(extent) for extent in (product.rows, product.columns, product.terms)]
        fixed += [np.int64(distance) for distance in _strides(product)]
        fixed += [np.int32(product.bias), np.int32(product.relu)]
        blocks = math.prod(-(-extent // TILE) for extent in (product.rows, product.columns))
        return launch(_function(self._runtime, product, "product"), max(1, blocks), fixed)


class BlasProducts:
    """cuBLAS; bias and ReLU follow in a launch of our own, before the one rounding of a bfloat16 result.

    Scratch memory has the library's workspace first, then sums of higher precision than the result.
    """

    library = "cublas"
    priority = 10

    def __init__(self, runtime: Runtime, blas: Blas) -> None:
        self._runtime = runtime
        self._blas = blas

    def takes(self, product: Product) -> bool:
        """Not what is empty, and nothing that an int of C does not count."""
        extents = (product.rows, product.columns, product.terms)
        return min(extents) > 0 and max(extents) <= _INT_MAX

    def scratch_bytes(self, product: Product) -> int:
        sums = product.size * numpy_dtype(computed_in(product.dtype)).itemsize if _apart(product) else 0
        return ALIGNMENT + aligned(self._blas.workspace_bytes) + sums

    def call(self, product: Product, a: int, b: int, bias: int, y: int, scratch: int) -> StreamCall:
        workspace = aligned(scratch)
        sums = workspace + aligned(self._blas.workspace_bytes) if _apart(product) else y
        shape = column_major(product)
        dtypes = (product.dtype, computed_in(product.dtype) if _apart(product) else product.result)

        def enqueue(stream: Stream) -> None:
            self._blas.gemm(stream, shape, dtypes, b, a, sums, workspace)

        multiplied = StreamCall(enqueue)
        if not (product.bias or product.relu):
            return multiplied
        return in_order([multiplied, self._finish(product, sums, bias, y)])

    def _finish(self, product: Product, sums: int, bias: int, y: int) -> StreamCall:
        fixed: list[Argument] = [np.uintp(address) for address in (sums, bias, y)]
        fixed += [np.int64(product.size), np.int64(product.columns), np.int32(product.bias), np.int32(product.relu)]
        function = _function(self._runtime, product, "finish")
        return launch(function, blocks_for(self._runtime, product.size), fixed)


def _apart(product: Product) -> bool:
    """Whether sums are kept apart from the result, which would round them before all is done."""
    return (product.bias or product.relu) and computed_in(product.dtype) != product.result


def _strides(product: Product) -> tuple[int, int, int, int]:
    """Distances between rows and terms of A, and between terms and columns of B."""
    a_row, a_term = (1, product.a[1]) if product.transpose_a else (product.a[1], 1)
    b_term, b_column = (1, product.b[1]) if product.transpose_b else (product.b[1], 1)
    return a_row, a_term, b_term, b_column


def _function(runtime: Runtime, product: Product, name: str) -> Function:
    types = {"T": product.dtype, "A": computed_in(product.dtype), "R": product.result}
    # Sums of products may be contracted, as in every library of products.
    return runtime.function(f"// fmad\n{text('matmul', **types)}", name)
