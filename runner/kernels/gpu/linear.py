"""Matrix multiplication: tiles of our own, or cuBLAS, each with what may follow a product in a dense layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel, Offers, Spec, Specs, plain
from runner.kernels.gpu import cublas
from runner.kernels.gpu.calls import StreamCall, blocks_for, in_order, launch
from runner.kernels.gpu.cublas import Product, Products
from runner.kernels.gpu.runtime import Argument, Function, Runtime, Stream
from runner.kernels.gpu.source import computed_in, text
from runner.kernels.memory import address_of, numpy_dtype

TILE = 64
"""Rows and columns of the tile that a block of our own kernel makes."""

ALIGNMENT = 256
"""Bytes: of a GPU's allocations, and of what libraries are lent."""

_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Dense:
    """A product and what follows it: whether a bias per column is added, and whether max(y, 0) is taken then."""

    product: Product
    bias: bool = False
    relu: bool = False

    @property
    def size(self) -> int:
        """Elements of the result."""
        return self.product.m * self.product.n

    @property
    def rounded_apart(self) -> bool:
        """Whether sums must be kept apart from a result that would round them before all is done."""
        return (self.bias or self.relu) and computed_in(self.product.dtype) != self.product.result


class Multiplier(Protocol):
    """Who computes products."""

    library: str
    priority: int

    def takes(self, dense: Dense) -> bool:
        """Whether it can compute a product."""
        ...

    def scratch_bytes(self, dense: Dense) -> int:
        """Memory that it may spoil."""
        ...

    def call(self, dense: Dense, a: int, b: int, bias: int, y: int, scratch: int) -> StreamCall:
        """The call that computes it, from addresses; bias is read only where the product has one."""
        ...


def kernels(runtime: Runtime) -> list[Kernel]:
    """matmul of each library that is there."""
    return [_matmul(multiplier) for multiplier in multipliers(runtime)]


def multipliers(runtime: Runtime) -> list[Multiplier]:
    """Our own kernel, and cuBLAS where the runtime has it."""
    library = runtime.library("cublas")
    return [OwnProducts(runtime)] if library is None else [OwnProducts(runtime), LibraryProducts(runtime, library)]


def product_of(a: Spec, b: Spec, attributes: Attributes, result: str | None = None) -> Product:
    """The product of two matrices that a node's attributes describe. result: its dtype, by default that of a."""
    turn_a, turn_b = attributes["transpose_a"], attributes["transpose_b"]
    m, k = reversed(a.shape) if turn_a else a.shape
    n = b.shape[0 if turn_b else 1]
    return Product(m, n, k, a.dtype, result or a.dtype, turn_a, turn_b)


def arrange_dense(multiplier: Multiplier, dense: Dense, inputs: Specs, outputs: Specs) -> Arrangement | None:
    """Everything in C order, with the multiplier's memory; None where it does not take the product."""
    if not multiplier.takes(dense):
        return None
    scratch = multiplier.scratch_bytes(dense)
    return Arrangement(tuple(map(plain, inputs)), tuple(map(plain, outputs)), scratch)


def bind_dense(multiplier: Multiplier, dense: Dense, buffers: Buffers) -> StreamCall:
    """The call for a node whose inputs are a, b and perhaps a bias, and whose output is the result."""
    a, b, *bias = (operand.address for operand in buffers.inputs)
    (y,) = buffers.outputs
    return multiplier.call(dense, a, b, bias[0] if bias else 0, y.address, address_of(buffers.scratch))


@dataclass(frozen=True)
class ScratchMatrix:
    """A matrix that one launch of a node leaves in scratch memory for the next."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Without gaps."""
        return self.shape[0] * self.shape[1] * numpy_dtype(self.dtype).itemsize


def aligned(nbytes: int) -> int:
    """The next multiple of what libraries want of an address."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _matmul(multiplier: Multiplier) -> Kernel:
    def arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
        return arrange_dense(multiplier, Dense(product_of(inputs[0], inputs[1], attributes)), inputs, outputs)

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        a, b = buffers.inputs
        return bind_dense(multiplier, Dense(product_of(a.spec, b.spec, attributes)), buffers)

    return Kernel("matmul", "gpu", multiplier.library, multiplier.priority, FLOATS, arrange, bind)


class OwnProducts:
    """Tiles in shared memory: every dtype, every shape."""

    library = "cuda"
    priority = 0

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def takes(self, dense: Dense) -> bool:
        return True

    def scratch_bytes(self, dense: Dense) -> int:
        return 0

    def call(self, dense: Dense, a: int, b: int, bias: int, y: int, scratch: int) -> StreamCall:
        product = dense.product
        fixed: list[Argument] = [np.uintp(address) for address in (a, b, bias, y)]
        fixed += [np.int64(extent) for extent in (product.m, product.n, product.k)]
        fixed += [np.int64(distance) for distance in _strides(product)]
        fixed += [np.int32(dense.bias), np.int32(dense.relu)]
        blocks = -(-product.m // TILE) * -(-product.n // TILE)
        return launch(_function(self._runtime, product, "product"), max(1, blocks), fixed)


class LibraryProducts:
    """Those of cuBLAS; bias and ReLU follow in a launch of our own, before the one rounding of a bfloat16 result.

    Scratch memory has the library's workspace first, then sums of higher precision than the result.
    """

    library = "cublas"
    priority = 10

    def __init__(self, runtime: Runtime, products: Products) -> None:
        self._runtime = runtime
        self._products = products

    def takes(self, dense: Dense) -> bool:
        """Not what is empty, and nothing that an int of C does not count."""
        extents = (dense.product.m, dense.product.n, dense.product.k)
        return min(extents) > 0 and max(extents) <= _INT_MAX

    def scratch_bytes(self, dense: Dense) -> int:
        itemsize = numpy_dtype(computed_in(dense.product.dtype)).itemsize
        return ALIGNMENT + aligned(cublas.WORKSPACE_BYTES) + (dense.size * itemsize if dense.rounded_apart else 0)

    def call(self, dense: Dense, a: int, b: int, bias: int, y: int, scratch: int) -> StreamCall:
        self._products.prepare()
        workspace = aligned(scratch)
        product, sums = dense.product, y
        if dense.rounded_apart:
            product = replace(product, result=computed_in(product.dtype))
            sums = workspace + aligned(cublas.WORKSPACE_BYTES)

        def enqueue(stream: Stream) -> None:
            self._products.enqueue(stream, product, a, b, sums, workspace)

        multiplied = StreamCall(enqueue)
        if not (dense.bias or dense.relu):
            return multiplied
        return in_order([multiplied, self._finish(dense, sums, bias, y)])

    def _finish(self, dense: Dense, sums: int, bias: int, y: int) -> StreamCall:
        fixed: list[Argument] = [np.uintp(address) for address in (sums, bias, y)]
        fixed += [np.int64(dense.size), np.int64(dense.product.n), np.int32(dense.bias), np.int32(dense.relu)]
        function = _function(self._runtime, dense.product, "finish")
        return launch(function, blocks_for(self._runtime, dense.size), fixed)


def _strides(product: Product) -> tuple[int, int, int, int]:
    """Distances between rows and terms of A, and between terms and columns of B."""
    a_row, a_term = (1, product.m) if product.transpose_a else (product.k, 1)
    b_term, b_column = (1, product.k) if product.transpose_b else (product.n, 1)
    return a_row, a_term, b_term, b_column


def _function(runtime: Runtime, product: Product, name: str) -> Function:
    types = {"T": product.dtype, "A": computed_in(product.dtype), "R": product.result}
    return runtime.function(text("matmul", **types), name)
