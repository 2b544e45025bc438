"""Matrix multiplication by our own kernel or by cuBLAS, optionally with bias and ReLU."""

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
"""Rows and columns of the tile per block of our own kernel."""

ALIGNMENT = 256
"""Bytes, of GPU allocations and library workspaces."""

_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Dense:
    """A product, and whether a bias per column is added and max(y, 0) is taken."""

    product: Product
    bias: bool = False
    relu: bool = False

    @property
    def size(self) -> int:
        """Elements of the result."""
        return self.product.m * self.product.n

    @property
    def rounded_apart(self) -> bool:
        """Whether sums need separate memory, because the dtype of the result would round them before bias and ReLU."""
        return (self.bias or self.relu) and computed_in(self.product.dtype) != self.product.result


class Multiplier(Protocol):
    """A way to compute products."""

    library: str
    priority: int

    def takes(self, dense: Dense) -> bool:
        """Whether it can compute a product."""
        ...

    def scratch_bytes(self, dense: Dense) -> int:
        """Return the bytes of scratch memory."""
        ...

    def call(self, dense: Dense, a: int, b: int, bias: int, y: int, scratch: int) -> StreamCall:
        """Return the call for operands at these addresses; bias is read only if the product has one."""
        ...


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return matmul and matmul_fused for each available library."""
    return [_product(op, each) for op in ("matmul", "matmul_fused") for each in multipliers(runtime)]


def multipliers(runtime: Runtime) -> list[Multiplier]:
    """Return our own kernel and, if available, cuBLAS."""
    library = runtime.library("cublas")
    return [OwnProducts(runtime)] if library is None else [OwnProducts(runtime), LibraryProducts(runtime, library)]


def product_of(a: Spec, b: Spec, attributes: Attributes) -> Product:
    """Return the product of two matrices under the attributes of a node."""
    turn_a, turn_b = attributes["transpose_a"], attributes["transpose_b"]
    m, k = reversed(a.shape) if turn_a else a.shape
    n = b.shape[0 if turn_b else 1]
    return Product(m, n, k, a.dtype, attributes.get("dtype", a.dtype), turn_a, turn_b)


def arrange_dense(multiplier: Multiplier, dense: Dense, inputs: Specs, outputs: Specs) -> Arrangement | None:
    """Arrange everything in C order with the scratch memory of the multiplier; None if it refuses the product."""
    if not multiplier.takes(dense):
        return None
    scratch = multiplier.scratch_bytes(dense)
    return Arrangement(tuple(map(plain, inputs)), tuple(map(plain, outputs)), scratch)


@dataclass(frozen=True)
class ScratchMatrix:
    """An intermediate matrix in scratch memory, without gaps."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Without gaps."""
        return self.shape[0] * self.shape[1] * numpy_dtype(self.dtype).itemsize


def aligned(nbytes: int) -> int:
    """Return the next multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _product(op: str, multiplier: Multiplier) -> Kernel:
    """A product of inputs a and b, then a bias if the attributes have it."""

    def dense(attributes: Attributes, a: Spec, b: Spec) -> Dense:
        return Dense(product_of(a, b, attributes), attributes.get("bias", False), attributes.get("relu", False))

    def arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
        return arrange_dense(multiplier, dense(attributes, *inputs[:2]), inputs, outputs)

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        (a, b, *bias), (y,) = buffers.inputs, buffers.outputs
        addresses = (a.address, b.address, bias[0].address if bias else 0, y.address, address_of(buffers.scratch))
        return multiplier.call(dense(attributes, a.spec, b.spec), *addresses)

    return Kernel(op, "gpu", multiplier.library, multiplier.priority, FLOATS, arrange, bind)


class OwnProducts:
    """Our own kernel, with tiles in shared memory: every dtype, every shape."""

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
    """Products of cuBLAS; bias and ReLU follow in our own launch, before a bfloat16 result is rounded.

    Scratch memory holds the workspace of the library, then sums of higher precision than the result.
    """

    library = "cublas"
    priority = 10

    def __init__(self, runtime: Runtime, products: Products) -> None:
        self._runtime = runtime
        self._products = products

    def takes(self, dense: Dense) -> bool:
        """Refuse empty products and extents beyond an int of C."""
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
    """Return the strides of rows and terms of A, and of terms and columns of B."""
    a_row, a_term = (1, product.m) if product.transpose_a else (product.k, 1)
    b_term, b_column = (1, product.k) if product.transpose_b else (product.n, 1)
    return a_row, a_term, b_term, b_column


def _function(runtime: Runtime, product: Product, name: str) -> Function:
    types = {"T": product.dtype, "A": computed_in(product.dtype), "R": product.result}
    return runtime.function(text("matmul", **types), name)
