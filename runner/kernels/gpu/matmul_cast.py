"""A product that casts its weights itself: on a GPU, into scratch memory right before the product.

This saves nothing on a GPU, so the passes leave the cast alone there; the kernel exists because every op has one.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel, Layout, Operand, Spec, plain
from runner.kernels.gpu import linear, structural
from runner.kernels.gpu.calls import StreamCall, in_order
from runner.kernels.gpu.linear import ScratchMatrix, aligned
from runner.kernels.gpu.runtime import DeviceMemory, Runtime
from runner.kernels.memory import address_of

LIBRARY = "cuda"


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the op as our own cast and our own product."""
    (cast,) = (kernel for kernel in structural.kernels(runtime) if kernel.op == "cast")
    (product,) = (
        kernel for kernel in linear.kernels(runtime) if (kernel.op, kernel.library) == ("matmul_fused", LIBRARY)
    )

    def arrange(
        attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
    ) -> Arrangement | None:
        weights = ScratchMatrix(inputs[1].shape, attributes["cast_to"])
        following = _product(product, attributes, inputs, weights, outputs)
        scratch = aligned(weights.nbytes) + following.scratch_bytes
        return Arrangement(tuple(map(plain, inputs)), tuple(map(plain, outputs)), scratch)

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        return _bind(cast, product, attributes, buffers)

    return [Kernel("matmul_cast", "gpu", LIBRARY, 0, FLOATS, arrange, bind)]


def _bind(cast: Kernel, product: Kernel, attributes: Attributes, buffers: Buffers) -> StreamCall:
    a, b, *bias = buffers.inputs
    weights = ScratchMatrix(b.spec.shape, attributes["cast_to"])
    start = address_of(buffers.scratch)
    rounded = Operand(weights, plain(weights), DeviceMemory(start, weights.nbytes))
    cast_attributes = {"dtype": weights.dtype}
    casting = cast.arrange(cast_attributes, [b.spec], [weights], [plain(b.spec)])
    specs, results = [each.spec for each in buffers.inputs], [each.spec for each in buffers.outputs]
    following = _product(product, attributes, specs, weights, results)
    assert casting is not None, "a cast of plain floats is always taken"
    behind = DeviceMemory(start + aligned(weights.nbytes), following.scratch_bytes)
    first = cast.bind(cast_attributes, casting, Buffers((b,), (rounded,), DeviceMemory(start, 0)))
    second = product.bind(attributes, following, Buffers((a, rounded, *bias), buffers.outputs, behind))
    return in_order([call for call in (first, second) if isinstance(call, StreamCall)])


def _product(
    product: Kernel, attributes: Attributes, inputs: Sequence[Spec], weights: ScratchMatrix, outputs: Sequence[Spec]
) -> Arrangement:
    """What the product behind the cast asks of memory, everything in C order."""
    specs = [inputs[0], weights, *inputs[2:]]
    found = product.arrange(attributes, specs, outputs, [plain(spec) for spec in specs])
    assert found is not None, "our own product is never refused"
    return found
