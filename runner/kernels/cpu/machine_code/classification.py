"""Cross-entropy of so few logits that a oneDNN call would cost more than the computation, and its gradient."""

import ctypes
import math
from collections.abc import Callable
from functools import cache, partial

from llvmlite import ir

from runner.kernels.contract import Arrangement, Attributes, Bound, Buffers, Kernel, Offers, Specs
from runner.kernels.cpu.machine_code.compiler import MachineCode, function_addresses
from runner.kernels.cpu.machine_code.elementwise import LIBRARY, PRIORITY
from runner.kernels.cpu.machine_code.instructions import EMIT, INDEX, Lanes, Value, declared, element, fold
from runner.kernels.cpu.machine_code.rows import DTYPE, ONE, Row, bound, write_module
from runner.kernels.functions import arrange_in_place, arrange_plain
from runner.kernels.reference.rows import outside_range
from runner.kernels.registry import Registry

DTYPES = frozenset({DTYPE})

LOSS_PRIORITY = 30
"""Priority of the cross-entropy: higher than that of oneDNN, which computes more than ``LARGEST`` logits."""

LARGEST = 2048
"""The largest number of logits for which one thread with scalar exponentials is fastest."""

_LABEL_BITS = {"int32": 32, "int64": 64}
_NO_CLASS = 1
"""The status that a compiled function returns if a label is out of range."""

_DOUBLE = Lanes("float64", 1)


def register(registry: Registry) -> None:
    """Add the kernels of this family."""
    loss, gradient = "softmax_cross_entropy", "softmax_cross_entropy_gradient"
    bind_loss, bind_gradient = partial(_bind, loss, _compiled_loss), partial(_bind, gradient, _compiled_gradient)
    registry.add(Kernel(loss, "cpu", LIBRARY, LOSS_PRIORITY, DTYPES, _arrange, bind_loss))
    registry.add(Kernel(gradient, "cpu", LIBRARY, PRIORITY, DTYPES, arrange_in_place, bind_gradient))


def _arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    few = math.prod(inputs[0].shape) <= LARGEST
    return arrange_plain(attributes, inputs, outputs, offered) if few else None


def _bind(
    op: str, compiled: Callable[[str], MachineCode], attributes: Attributes, arrangement: Arrangement, buffers: Buffers
) -> Bound:
    operands = (*buffers.inputs, *buffers.outputs)
    rows, classes = operands[0].spec.shape
    labels = operands[1]

    def explain(status: int) -> str:
        error = outside_range(op, labels.array, classes)  # the error of the reference kernel
        assert error is not None, f"status {status} is only for labels out of range"
        return f"{type(error).__name__}: {error}"

    return bound(compiled(labels.spec.dtype), [operand.data for operand in operands], (rows, classes), explain)


@cache
def _compiled_loss(label_dtype: str) -> MachineCode:
    """Compile loss = log(sum(e ** (x - max))) - (x[label] - max) and probabilities = e ** (x - max) / sum(...)."""

    def row_loss(row: Row) -> None:
        label = _class_of(row, label_dtype)
        largest = _largest(row)
        own = row.load(0, ONE, label)
        total = _store_exponentials(row, largest)
        builder = row.builder
        # In float64, the loss of a label with a probability near 1 is small but not 0.
        distance = builder.fsub(_double(builder, own), _double(builder, largest))
        loss = builder.fsub(builder.call(declared(builder, "log", _DOUBLE.type, _DOUBLE.type), [total]), distance)
        ONE.store(builder, DTYPE, builder.fptrunc(loss, ONE.type), row.bases[2], row.number)
        _divide(row, builder.fptrunc(total, ONE.type))

    return MachineCode(write_module(4, row_loss), function_addresses(ctypes.CDLL(None), "expf", "log"))


def _largest(row: Row) -> Value:
    """Return the largest logit of the row, or NaN if a logit is NaN."""
    return row.reduced(DTYPE, -math.inf, partial(row.load, 0), partial(EMIT["maximum"], row.builder, None))


def _store_exponentials(row: Row, largest: Value) -> Value:
    """Store e ** (x - largest) as probabilities; return their sum in float64, added from the first to the last."""
    builder = row.builder
    exponential = declared(builder, "expf", ONE.type, ONE.type)

    def add(column: Value, so_far: list[Value]) -> list[Value]:
        power = builder.call(exponential, [builder.fsub(row.load(0, ONE, column), largest)])
        row.store(3, ONE, column, power)
        return [builder.fadd(so_far[0], _double(builder, power))]

    return fold(builder, INDEX(0), row.columns, 1, [_DOUBLE.constant(0.0)], add)[0]


def _divide(row: Row, total: Value) -> None:
    """Divide the row of probabilities by ``total``."""

    def divide(lanes: Lanes, column: Value) -> None:
        share = row.builder.fdiv(row.load(3, lanes, column), lanes.spread(row.builder, total))
        row.store(3, lanes, column, share)

    row.for_columns(divide)


@cache
def _compiled_gradient(label_dtype: str) -> MachineCode:
    """Compile dlogits = (probabilities - (1 at the label, else 0)) * dloss. dlogits may overwrite the probabilities."""

    def row_gradient(row: Row) -> None:
        builder = row.builder
        label = _class_of(row, label_dtype)
        dloss = ONE.load(builder, DTYPE, row.bases[2], row.number)
        own = builder.fsub(row.load(0, ONE, label), ONE.constant(1.0))

        def scale(lanes: Lanes, column: Value) -> None:
            scaled = builder.fmul(row.load(0, lanes, column), lanes.spread(builder, dloss))
            row.store(3, lanes, column, scaled)

        row.for_columns(scale)
        row.store(3, ONE, label, builder.fmul(own, dloss))

    return MachineCode(write_module(4, row_gradient))


def _class_of(row: Row, label_dtype: str) -> Value:
    """Return the label of the row. If the label is out of range, the compiled function returns ``_NO_CLASS``."""
    kind = ir.IntType(_LABEL_BITS[label_dtype])
    label = row.builder.load(element(row.builder, row.bases[1], kind, row.number), typ=kind)
    label = label if kind == INDEX else row.builder.sext(label, INDEX)
    # Read as an unsigned number, a negative label is out of range.
    row.refuse(row.builder.icmp_unsigned(">=", label, row.columns), _NO_CLASS)
    return label


def _double(builder: ir.IRBuilder, value: Value) -> Value:
    return builder.fpext(value, _DOUBLE.type)
