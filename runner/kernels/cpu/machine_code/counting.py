"""Loops over integers in generated code."""

from collections.abc import Callable, Sequence

from llvmlite import ir

from runner.kernels.cpu.machine_code.arithmetic import Value

INDEX = ir.IntType(64)
"""Type of loop counters."""

Body = Callable[[Value, list[Value]], Sequence[Value]]
"""(index, values of the previous iteration) -> values for the next one; appends the instructions of one iteration."""


def fold(
    builder: ir.IRBuilder, begin: Value, stop: Value, stride: int, initial: Sequence[Value], body: Body
) -> list[Value]:
    """Append ``for (index = begin; index < stop; index += stride) values = body(index, values)``.

    The values start as ``initial``; returns the final ones. The body may append blocks.
    """
    before = builder.block
    inside, after = builder.append_basic_block("inside"), builder.append_basic_block("after")
    builder.cbranch(builder.icmp_signed("<", begin, stop), inside, after)
    builder.position_at_end(inside)
    index = builder.phi(INDEX)
    values = [builder.phi(value.type) for value in initial]
    left = body(index, list(values))
    following = builder.add(index, INDEX(stride))
    end = builder.block
    builder.cbranch(builder.icmp_signed("<", following, stop), inside, after)
    builder.position_at_end(after)
    last = [builder.phi(value.type) for value in initial]
    for phi, first, again in [(index, begin, following), *zip(values, initial, left, strict=True)]:
        phi.add_incoming(first, before)
        phi.add_incoming(again, end)
    for phi, first, again in zip(last, initial, left, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(again, end)
    return last


def repeat(builder: ir.IRBuilder, begin: Value, stop: Value, stride: int, body: Callable[[Value], None]) -> None:
    """Append ``for (index = begin; index < stop; index += stride) body(index)``."""

    def once(index: Value, nothing: list[Value]) -> Sequence[Value]:
        body(index)
        return ()

    fold(builder, begin, stop, stride, (), once)


def whole_part(builder: ir.IRBuilder, count: Value, lanes: int) -> Value:
    """Return the largest multiple of ``lanes``, a power of two, up to ``count``."""
    return builder.and_(count, INDEX(-lanes))
