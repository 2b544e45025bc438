"""A product that goes into a chain of element-wise operations: it is kept in scratch memory for the next launch."""

from __future__ import annotations

from collections.abc import Sequence

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel, Layout, Operand, Spec, plain
from runner.kernels.gpu import elementwise
from runner.kernels.gpu.calls import StreamCall, in_order
from runner.kernels.gpu.linear import Dense, Multiplier, ScratchMatrix, aligned, multipliers, product_of
from runner.kernels.gpu.runtime import DeviceMemory, Runtime
from runner.kernels.memory import address_of

OP = "matmul_elementwise"


def kernels(runtime: Runtime) -> list[Kernel]:
    """The op with the products of each library that is there."""
    (program,) = (kernel for kernel in elementwise.kernels(runtime) if kernel.op == "elementwise")
    return [_kernel(multiplier, program) for multiplier in multipliers(runtime)]


def _kernel(multiplier: Multiplier, program: Kernel) -> Kernel:
    def arrange(
        attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
    ) -> Arrangement | None:
        dense = Dense(product_of(inputs[0], inputs[1], attributes, attributes["dtype"]))
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
        return _bind(multiplier, program, attributes, buffers)

    return Kernel(OP, "gpu", multiplier.library, multiplier.priority, FLOATS, arrange, bind)


def _bind(multiplier: Multiplier, program: Kernel, attributes: Attributes, buffers: Buffers) -> StreamCall:
    a, b, *operands = buffers.inputs
    dense = Dense(product_of(a.spec, b.spec, attributes, attributes["dtype"]))
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


def _arranged(
    program: Kernel, attributes: Attributes, dense: Dense, inputs: Sequence[Spec], outputs: Sequence[Spec]
) -> Arrangement:
    """What the program asks of memory, with everything in C order."""
    place, operands = attributes["product"], inputs[2:]
    specs = [*operands[:place], _between(dense), *operands[place:]]
    found = program.arrange(attributes, specs, outputs, [plain(spec) for spec in specs])
    assert found is not None, "a program over two axes is always taken"
    return found


def _input_of(taken: int, place: int) -> int:
    """Number among the node's inputs of an input of the program that is not the product."""
    return taken + (2 if taken < place else 1)
