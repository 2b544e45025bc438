"""Matrix products, optionally with bias and ReLU, and both gradients of a dense layer.

Every matrix is in C order. Compared with oneDNN's blocked weights, C order with the right primitive is as fast in the
forward pass and faster in the backward pass (on two AVX-512 cores, 1 to 512 rows, float32 and bfloat16).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.kernels.contract import Arrangement, Attributes, Bound, Buffers, Kernel, Operand, Spec, all_plain, plain
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.library import Library
from runner.kernels.cpu.onednn.memory import described, in_c_order, strided
from runner.kernels.cpu.onednn.recipe import FLOATS, PRIORITY, Description, Layouts, Node, answering, attributes, bound
from runner.kernels.memory import ALIGNMENT
from runner.kernels.registry import Registry

LARGE = 1 << 17
"""The smallest number of weights for which the memory access pattern determines the speed."""

FEW_ROWS = 4
"""The largest number of rows of dy for which dy W' (W' is W transposed) is computed by :func:`_input_gradient`."""

TRANSPOSED_ROWS = range(8, 257)
"""If dy has one of these numbers of rows and W has ``LARGE`` weights or more, :func:`_transposed_product` is used."""

TRANSPOSED = "t:"
"""The prefix of the layout tag that describes a matrix in C order as its transpose."""


@dataclass(frozen=True)
class Step:
    """One primitive and its arguments. tensors: DNNL_ARG number -> (descriptor, position of the tensor).

    Positions count the inputs of the node, then its outputs, then the intermediate result.
    """

    description: Description
    tensors: Mapping[int, tuple[Any, int]]


@dataclass(frozen=True)
class Product:
    """The steps of a product, in order. between: the intermediate result, if there is one."""

    steps: Sequence[Step]
    between: Spec | None = None

    @property
    def between_bytes(self) -> int:
        """Bytes of the intermediate result, aligned."""
        return 0 if self.between is None else -(-self.between.nbytes // ALIGNMENT) * ALIGNMENT

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the intermediate result and of the scratch memory that the steps share."""
        return self.between_bytes + max(step.description.scratch_bytes for step in self.steps)


Describe = Callable[[Library, Node], Product]


def register(registry: Registry, library: Library) -> None:
    """Add the kernels of matrix products and of the gradient of weights and bias."""
    _add(registry, library, "matmul", _product)
    _add(registry, library, "matmul_fused", _product)
    _add(registry, library, "matmul_bias_gradient", _weight_and_bias_gradient)


def _add(registry: Registry, library: Library, op: str, describe: Describe) -> None:
    def arrange(node: Node, offered: Layouts) -> Arrangement:
        return all_plain(node.inputs, node.outputs, describe(library, node).scratch_bytes)

    def bind(given: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
        return _bound(describe(library, Node(given, *buffers.specs)), buffers)

    registry.add(Kernel(op, "cpu", "onednn", PRIORITY, FLOATS, answering(library, arrange), bind))


def _bound(product: Product, buffers: Buffers) -> Bound:
    between, scratch = buffers.scratch[: product.between_bytes], buffers.scratch[product.between_bytes :]
    operands = [*buffers.inputs, *buffers.outputs]
    if product.between is not None:
        operands.append(Operand(product.between, plain(product.between), between))
    calls = []
    for step in product.steps:
        arguments = {number: (descriptor, operands[place]) for number, (descriptor, place) in step.tensors.items()}
        calls.append(bound(step.description, arguments, scratch))
    return calls


def _product(library: Library, node: Node) -> Product:
    """Return the product of two inputs. ``bias`` adds a third input; ``relu`` then replaces each y by max(y, 0)."""
    transposed = (node.attributes["transpose_a"], node.attributes["transpose_b"])
    (rows, columns), large = node.outputs[0].shape, math.prod(node.inputs[1].shape) >= LARGE
    if transposed == (False, False) and large:
        # oneDNN's matrix product would reorder large weights in every step; oneDNN's inner product does not. The inner
        # product reads weights as (outputs, inputs), so the axes of our weights are exchanged.
        a, b = _matrix(library, node.inputs[0]), _matrix(library, node.inputs[1], transposed=True)
        return _forward(library, node, "inner_product_forward", (dnnl.FORWARD_TRAINING,), a, b, (columns,))
    if transposed == (False, True) and not _has(node, "bias") and not _has(node, "relu"):
        if rows <= FEW_ROWS:
            return _input_gradient(library, node)
        if rows in TRANSPOSED_ROWS and large:
            return _transposed_product(library, node)
    a, b = (_matrix(library, spec, each) for spec, each in zip(node.inputs, transposed, strict=False))
    return _forward(library, node, "matmul", (), a, b, (1, columns))


def _has(node: Node, part: str) -> bool:
    """Return whether ``part``, bias or relu, is fused; op matmul has neither."""
    return bool(node.attributes.get(part, False))


def _matrix(library: Library, spec: Spec, transposed: bool = False) -> Any:
    """Return the descriptor of a matrix in C order or of its transpose."""
    return described(library, spec, plain(spec), TRANSPOSED if transposed else "")


def _forward(
    library: Library, node: Node, kind: str, goal: Sequence[int], a: Any, b: Any, bias_dims: Sequence[int]
) -> Product:
    (y,) = node.outputs
    result = _matrix(library, y)
    bias = in_c_order(library, bias_dims, node.inputs[2].dtype) if _has(node, "bias") else None
    attr = attributes(library, relu=_has(node, "relu"))
    desc = Description(library, kind, *goal, a, b, bias or library.ffi.NULL, result, attr=attr)
    tensors = {dnnl.SRC: (a, 0), dnnl.WEIGHTS: (b, 1), dnnl.DST: (result, len(node.inputs))}
    if bias is not None:
        tensors[dnnl.BIAS] = (bias, 2)
    return Product([Step(desc, tensors)])


def _input_gradient(library: Library, node: Node) -> Product:
    """Return dx = dy W' as the gradient of an inner product, which does not transpose W first."""
    dy, w = _matrix(library, node.inputs[0]), _matrix(library, node.inputs[1], transposed=True)
    dx, kind = _matrix(library, node.outputs[0]), "inner_product"
    goal, none = dnnl.FORWARD_TRAINING, library.ffi.NULL
    forward = Description(library, f"{kind}_forward", goal, dx, w, none, dy)
    desc = Description(library, f"{kind}_backward_data", dx, w, dy, forward.handle)
    return Product([Step(desc, {dnnl.DIFF_DST: (dy, 0), dnnl.WEIGHTS: (w, 1), dnnl.DIFF_SRC: (dx, 2)})])


def _transposed_product(library: Library, node: Node) -> Product:
    """Return dx = dy W' as the transpose of W dy'.

    To compute dy W', oneDNN first transposes all of W. To compute W dy', it reads W in C order, and only the result is
    transposed. Both methods add the same terms.
    """
    dy, w, dx, across = 0, 1, 2, 3
    large, small = _matrix(library, node.inputs[w]), _matrix(library, node.inputs[dy], transposed=True)
    end = _matrix(library, node.outputs[0], transposed=True)
    middle = in_c_order(library, node.outputs[0].shape[::-1], node.outputs[0].dtype)
    multiply = Description(library, "matmul", large, small, library.ffi.NULL, middle)
    transpose = Description(library, "reorder", middle, library.engine, end, library.engine)
    return Product(
        [
            Step(multiply, {dnnl.SRC: (large, w), dnnl.WEIGHTS: (small, dy), dnnl.DST: (middle, across)}),
            Step(transpose, {dnnl.SRC: (middle, across), dnnl.DST: (end, dx)}),
        ],
        between=node.outputs[0],
    )


def _weight_and_bias_gradient(library: Library, node: Node) -> Product:
    """Return the product of inputs x, dy with outputs dw = x' dy and db, the sum of dy over rows."""
    x, dy = (_matrix(library, spec) for spec in node.inputs)
    dw = _matrix(library, node.outputs[0], transposed=True)
    db = in_c_order(library, node.outputs[1].shape, node.outputs[1].dtype)
    kind = "inner_product"
    # If x and dy are bfloat16, the forward product has bfloat16 weights, even if the gradients are float32.
    (inner, columns), dtype = node.outputs[0].shape, node.inputs[0].dtype
    w, bias = strided(library, (columns, inner), dtype, (1, columns)), in_c_order(library, (columns,), dtype)
    forward = Description(library, f"{kind}_forward", dnnl.FORWARD_TRAINING, x, w, bias, dy)
    desc = Description(library, f"{kind}_backward_weights", x, dw, db, dy, forward.handle)
    tensors = {dnnl.SRC: (x, 0), dnnl.DIFF_DST: (dy, 1), dnnl.DIFF_WEIGHTS: (dw, 2), dnnl.DIFF_BIAS: (db, 3)}
    return Product([Step(desc, tensors)])
