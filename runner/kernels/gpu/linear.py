"""Matrix products by our own kernel or cuBLAS, also fused with bias, ReLU, bias gradients or element-wise programs."""

from dataclasses import dataclass, replace

import numpy as np

from runner.kernels.contract import (
    FLOATS,
    Arrangement,
    Attributes,
    Buffers,
    Kernel,
    Offers,
    Operand,
    Spec,
    Specs,
    all_plain,
    plain,
)
from runner.kernels.elementwise import computed_in
from runner.kernels.gpu import cublas, elementwise
from runner.kernels.gpu.cublas import CublasLibrary, Product
from runner.kernels.gpu.reduction import Reduction, reduce, reduced_shape, scratch_bytes
from runner.kernels.gpu.runtime import (
    ALIGNMENT,
    Argument,
    DeviceMemory,
    Function,
    Runtime,
    Stream,
    StreamCall,
    aligned,
    blocks_for,
    in_order,
    launch,
)
from runner.kernels.gpu.source import text
from runner.kernels.memory import address_of, numpy_dtype

TILE = 64
"""The number of rows, and of columns, of the tile that one block of our own kernel computes."""

_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Dense:
    """A product y = A B. bias: whether a bias per column is added to y. relu: whether max(y, 0) follows."""

    product: Product
    bias: bool = False
    relu: bool = False

    @property
    def size(self) -> int:
        """The number of elements of the result."""
        return self.product.m * self.product.n

    @property
    def rounded_apart(self) -> bool:
        """Whether sums need separate memory, because the result's dtype would round them before bias and ReLU."""
        return (self.bias or self.relu) and computed_in(self.product.dtype) != self.product.result


class OwnProducts:
    """Products of our own kernel, with tiles in shared memory, for every dtype and shape."""

    library = "cuda"
    priority = 0

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def takes(self, dense: Dense) -> bool:
        """Return whether the product is supported."""
        return True

    def scratch_bytes(self, dense: Dense) -> int:
        """Return the bytes of scratch memory."""
        return 0

    def call(self, dense: Dense, a: int, b: int, bias: int, y: int, scratch: int) -> StreamCall:
        """Return the call for operands at these addresses; ``bias`` is ignored if the product has no bias."""
        product = dense.product
        fixed: list[Argument] = [np.uintp(address) for address in (a, b, bias, y)]
        fixed += [np.int64(extent) for extent in (product.m, product.n, product.k)]
        fixed += [np.int64(distance) for distance in _strides(product)]
        fixed += [np.int32(dense.bias), np.int32(dense.relu)]
        blocks = -(-product.m // TILE) * -(-product.n // TILE)
        return launch(_function(self._runtime, product, "product"), max(1, blocks), fixed)


class LibraryProducts(OwnProducts):
    """Products of cuBLAS; our kernel ``finish`` then adds bias and ReLU, before a bfloat16 result is rounded.

    Scratch memory contains the workspace of cuBLAS, followed by the unrounded sums if ``Dense.rounded_apart``.
    """

    library = "cublas"
    priority = 10

    def __init__(self, runtime: Runtime, products: CublasLibrary) -> None:
        super().__init__(runtime)
        self._products = products

    def takes(self, dense: Dense) -> bool:
        """Return False for empty products and for extents that exceed a C int."""
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


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of products for each available library."""
    (program,) = (kernel for kernel in elementwise.kernels(runtime) if kernel.op == "elementwise")
    found: list[Kernel] = []
    for each in multipliers(runtime):
        found += [_product("matmul", each), _product("matmul_fused", each)]
        found += [_bias_gradient(runtime, each), _chained(each, program)]
    return found


def multipliers(runtime: Runtime) -> list[OwnProducts]:
    """Return our own kernel and, if available, cuBLAS."""
    library = runtime.library("cublas")
    return [OwnProducts(runtime)] if library is None else [OwnProducts(runtime), LibraryProducts(runtime, library)]


def _product_of(a: Spec, b: Spec, attributes: Attributes) -> Product:
    """Return the product of two matrices that the attributes of a node describe."""
    turn_a, turn_b = attributes["transpose_a"], attributes["transpose_b"]
    m, k = reversed(a.shape) if turn_a else a.shape
    n = b.shape[0 if turn_b else 1]
    return Product(m, n, k, a.dtype, attributes.get("dtype", a.dtype), turn_a, turn_b)


def _arrange(
    multiplier: OwnProducts, dense: Dense, inputs: Specs, outputs: Specs, least_scratch: int = 0
) -> Arrangement | None:
    """Arrange all tensors in C order with the multiplier's scratch memory; None for an unsupported product."""
    if not multiplier.takes(dense):
        return None
    scratch = max(multiplier.scratch_bytes(dense), least_scratch)
    return all_plain(inputs, outputs, scratch)


@dataclass(frozen=True)
class ScratchMatrix:
    """An intermediate matrix in scratch memory, without gaps."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix."""
        return self.shape[0] * self.shape[1] * numpy_dtype(self.dtype).itemsize


def _product(op: str, multiplier: OwnProducts) -> Kernel:
    """Return the kernel of a product of inputs a and b; if the attribute ``bias`` is true, input 2 is the bias."""

    def dense(attributes: Attributes, a: Spec, b: Spec) -> Dense:
        return Dense(_product_of(a, b, attributes), attributes.get("bias", False), attributes.get("relu", False))

    def arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
        return _arrange(multiplier, dense(attributes, *inputs[:2]), inputs, outputs)

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        (a, b, *bias), (y,) = buffers.inputs, buffers.outputs
        addresses = (a.address, b.address, bias[0].address if bias else 0, y.address, address_of(buffers.scratch))
        return multiplier.call(dense(attributes, a.spec, b.spec), *addresses)

    return Kernel(op, "gpu", multiplier.library, multiplier.priority, FLOATS, arrange, bind)


def _strides(product: Product) -> tuple[int, int, int, int]:
    """Return the strides of A along m and along k, and the strides of B along k and along n."""
    a_row, a_term = (1, product.m) if product.transpose_a else (product.k, 1)
    b_term, b_column = (1, product.k) if product.transpose_b else (product.n, 1)
    return a_row, a_term, b_term, b_column


def _function(runtime: Runtime, product: Product, name: str) -> Function:
    types = {"T": product.dtype, "A": computed_in(product.dtype), "R": product.result}
    return runtime.function(text("matmul", **types), name)


def _bias_gradient(runtime: Runtime, multiplier: OwnProducts) -> Kernel:
    """Return the kernel of both parameter gradients of a dense layer: x.T @ dy, and the sum of dy over its rows."""

    def parts(inputs: Specs, attributes: Attributes) -> tuple[Dense, Reduction]:
        x, dy = inputs
        dense = Dense(_product_of(x, dy, {**attributes, "transpose_a": True, "transpose_b": False}))
        return dense, reduced_shape(dy.shape, (dy.shape[1], 1), (0,))

    def arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
        dense, sums = parts(inputs, attributes)
        # Both calls share the scratch memory, because they run one after the other.
        return _arrange(multiplier, dense, inputs, outputs, scratch_bytes(sums, inputs[1].dtype))

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        (x, dy), (dw, db) = buffers.inputs, buffers.outputs
        dense, sums = parts(buffers.specs[0], attributes)
        scratch = address_of(buffers.scratch)
        source, target = (dy.spec.dtype, dy.address), (db.spec.dtype, db.address)
        product = multiplier.call(dense, x.address, dy.address, 0, dw.address, scratch)
        return in_order([product, reduce(runtime, "reduce_sum", sums, source, target, scratch)])

    return Kernel("matmul_bias_gradient", "gpu", multiplier.library, multiplier.priority, FLOATS, arrange, bind)


def _chained(multiplier: OwnProducts, program: Kernel) -> Kernel:
    """Return the kernel of a product and an element-wise program, which reads the product from scratch memory."""

    def parts(attributes: Attributes, inputs: Specs, outputs: Specs) -> tuple[Dense, ScratchMatrix, Arrangement]:
        """Return the product, its result, and the arrangement of the program with all tensors in C order."""
        (a, b, *operands), place = inputs, attributes["product"]
        dense = Dense(_product_of(a, b, attributes))
        between = ScratchMatrix((dense.product.m, dense.product.n), dense.product.result)
        specs = [*operands[:place], between, *operands[place:]]
        found = program.arrange(attributes, specs, outputs, [plain(spec) for spec in specs])
        assert found is not None, "a program over two axes is always supported"
        return dense, between, found

    def arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
        dense, between, following = parts(attributes, inputs, outputs)
        found, place = _arrange(multiplier, dense, inputs, outputs), attributes["product"]
        if found is None:
            return None
        # The inputs of the node are the factors, then the inputs of the program without the product.
        shared = ((taken + (2 if taken < place else 1), given) for taken, given in following.in_place if taken != place)
        return replace(found, scratch_bytes=aligned(between.nbytes) + found.scratch_bytes, in_place=tuple(shared))

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        (a, b, *operands), place = buffers.inputs, attributes["product"]
        dense, between, following = parts(attributes, *buffers.specs)
        start = address_of(buffers.scratch)
        behind = start + aligned(between.nbytes)
        result = Operand(between, plain(between), DeviceMemory(start, between.nbytes))
        inputs = (*operands[:place], result, *operands[place:])
        call = program.bind(attributes, following, Buffers(inputs, buffers.outputs, DeviceMemory(behind, 0)))
        assert isinstance(call, StreamCall), "kernels of a GPU are bound to calls on a stream"
        return in_order([multiplier.call(dense, a.address, b.address, 0, start, behind), call])

    return Kernel("matmul_elementwise", "gpu", multiplier.library, multiplier.priority, FLOATS, arrange, bind)
