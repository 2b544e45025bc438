"""Both parameter gradients of a dense layer in one call, and products consumed by element-wise chains."""

from collections.abc import Sequence
from dataclasses import replace

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
    plain,
)
from runner.kernels.gpu import elementwise
from runner.kernels.gpu.calls import StreamCall, in_order
from runner.kernels.gpu.linear import Dense, Multiplier, ScratchMatrix, aligned, arrange_dense, multipliers, product_of
from runner.kernels.gpu.reduction import Reduction, reduce, reduced_shape, scratch_bytes
from runner.kernels.gpu.runtime import DeviceMemory, Runtime
from runner.kernels.memory import address_of


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return matmul_bias_gradient and matmul_elementwise for each available library."""
    (program,) = (kernel for kernel in elementwise.kernels(runtime) if kernel.op == "elementwise")
    return [
        kernel for each in multipliers(runtime) for kernel in (_bias_gradient(runtime, each), _chained(each, program))
    ]


def _bias_gradient(runtime: Runtime, multiplier: Multiplier) -> Kernel:
    def arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
        dense, sums = _parts(inputs, attributes)
        found = arrange_dense(multiplier, dense, inputs, outputs)
        if found is None:
            return None
        # The two calls run one after the other and share the memory.
        return replace(found, scratch_bytes=max(found.scratch_bytes, scratch_bytes(sums, inputs[1].dtype)))

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        (x, dy), (dw, db) = buffers.inputs, buffers.outputs
        dense, sums = _parts([x.spec, dy.spec], attributes)
        scratch = address_of(buffers.scratch)
        source, target = (dy.spec.dtype, dy.address), (db.spec.dtype, db.address)
        return in_order(
            [
                multiplier.call(dense, x.address, dy.address, 0, dw.address, scratch),
                reduce(runtime, "reduce_sum", sums, source, target, scratch),
            ]
        )

    return Kernel("matmul_bias_gradient", "gpu", multiplier.library, multiplier.priority, FLOATS, arrange, bind)


def _parts(inputs: Sequence[Spec], attributes: Attributes) -> tuple[Dense, Reduction]:
    """Return x' dy and the sum of dy over its rows."""
    x, dy = inputs
    dense = Dense(product_of(x, dy, {**attributes, "transpose_a": True, "transpose_b": False}))
    return dense, reduced_shape(dy.shape, (dy.shape[1], 1), (0,))


def _chained(multiplier: Multiplier, program: Kernel) -> Kernel:
    """A product and the element-wise program that reads it, with the product in scratch memory between them."""

    def arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
        dense = Dense(product_of(inputs[0], inputs[1], attributes))
        if not multiplier.takes(dense):
            return None
        following = _arranged(program, attributes, dense, inputs, outputs)
        shared = tuple(
            (_input_of(taken, attributes["product"]), given)
            for taken, given in following.in_place
            if taken != attributes["product"]
        )
        behind = max(multiplier.scratch_bytes(dense), following.scratch_bytes)
        scratch = aligned(_between(dense).nbytes) + behind
        return Arrangement(tuple(map(plain, inputs)), tuple(map(plain, outputs)), scratch, shared)

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        return _bind_chained(multiplier, program, attributes, buffers)

    return Kernel("matmul_elementwise", "gpu", multiplier.library, multiplier.priority, FLOATS, arrange, bind)


def _bind_chained(multiplier: Multiplier, program: Kernel, attributes: Attributes, buffers: Buffers) -> StreamCall:
    a, b, *operands = buffers.inputs
    dense = Dense(product_of(a.spec, b.spec, attributes))
    between = _between(dense)
    start = address_of(buffers.scratch)
    result = Operand(between, plain(between), DeviceMemory(start, between.nbytes))
    behind = start + aligned(between.nbytes)
    following = _arranged(
        program,
        attributes,
        dense,
        [operand.spec for operand in buffers.inputs],
        [operand.spec for operand in buffers.outputs],
    )
    place = attributes["product"]
    lent = Buffers(
        (*operands[:place], result, *operands[place:]),
        buffers.outputs,
        DeviceMemory(behind, following.scratch_bytes),
    )
    call = program.bind(attributes, following, lent)
    assert isinstance(call, StreamCall), "kernels of a GPU are bound to calls on a stream"
    return in_order([multiplier.call(dense, a.address, b.address, 0, start, behind), call])


def _between(dense: Dense) -> ScratchMatrix:
    return ScratchMatrix((dense.product.m, dense.product.n), dense.product.result)


def _arranged(program: Kernel, attributes: Attributes, dense: Dense, inputs: Specs, outputs: Specs) -> Arrangement:
    """Return the arrangement of the program, with everything in C order."""
    place, operands = attributes["product"], inputs[2:]
    specs = [*operands[:place], _between(dense), *operands[place:]]
    found = program.arrange(attributes, specs, outputs, [plain(spec) for spec in specs])
    assert found is not None, "a program over two axes is always taken"
    return found


def _input_of(taken: int, place: int) -> int:
    """Return the input of the node that is an input of the program other than the product."""
    return taken + (2 if taken < place else 1)
