"""Cross-entropy of so few logits that a oneDNN call would cost more than the computation, and its gradient."""

import math
from collections.abc import Callable
from functools import cache, partial

import cffi
from llvmlite import ir

from runner.kernels.contract import Arrangement, Attributes, Bound, Buffers, Kernel, Offers, Operand, Specs
from runner.kernels.cpu.machine_code.compiler import MachineCode
from runner.kernels.cpu.machine_code.elementwise import LIBRARY, PRIORITY
from runner.kernels.cpu.machine_code.instructions import EMIT, INDEX, Lanes, Value, fold, load, store
from runner.kernels.cpu.machine_code.rows import Row, bound, write_module
from runner.kernels.functions import arrange_in_place, arrange_plain
from runner.kernels.reference.rows import outside_range
from runner.kernels.registry import Registry

_DECLARATIONS = """
float expf(float);
double log(double);
"""
_FUNCTIONS = ("expf", "log")


@cache
def _c_functions() -> dict[str, int]:
    """Return name -> address of each function in ``_FUNCTIONS``, from the C library of the interpreter."""
    ffi = cffi.FFI()
    ffi.cdef(_DECLARATIONS)
    library = ffi.dlopen(None)
    return {name: int(ffi.cast("intptr_t", ffi.addressof(library, name))) for name in _FUNCTIONS}


DTYPE = "float32"
DTYPES = frozenset({DTYPE})

LOSS_PRIORITY = 30
"""Priority of the cross-entropy: higher than that of oneDNN, which computes more than ``LARGEST`` logits."""

LARGEST = 2048
"""The largest number of logits for which one thread with scalar exponentials is fastest."""

_LABEL_BITS = {"int32": 32, "int64": 64}
_NO_CLASS = 1
"""The status that a compiled function returns if a label is out of range."""

_ONE = Lanes(DTYPE, 1)
_DOUBLE = Lanes("float64", 1)


def register(registry: Registry) -> None:
    """Add the kernels of this family."""
    loss, gradient = "softmax_cross_entropy", "softmax_cross_entropy_gradient"
    bind_loss, bind_gradient = partial(_bind, loss, _compiled_loss), partial(_bind, gradient, _compiled_gradient)
    registry.add(Kernel(loss, "cpu", LIBRARY, LOSS_PRIORITY, DTYPES, _arrange, bind_loss))
    registry.add(Kernel(gradient, "cpu", LIBRARY, PRIORITY, DTYPES, arrange_in_place, bind_gradient))


def _arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    if math.prod(inputs[0].shape) > LARGEST:
        return None
    return arrange_plain(attributes, inputs, outputs, offered)


def _bind(
    op: str, compiled: Callable[[str], MachineCode], attributes: Attributes, arrangement: Arrangement, buffers: Buffers
) -> Bound:
    rows, classes = buffers.inputs[0].spec.shape
    labels = buffers.inputs[1]
    explain = _explanation(op, labels, classes)
    return bound(compiled(labels.spec.dtype), (*buffers.inputs, *buffers.outputs), (rows, classes), explain)


def _explanation(op: str, labels: Operand, classes: int) -> Callable[[int], str]:
    """Return a function that returns the reference kernel's error message for the current labels."""

    def explain(status: int) -> str:
        error = outside_range(op, labels.array, classes)
        assert error is not None, f"status {status} is only for labels out of range"
        return f"{type(error).__name__}: {error}"

    return explain


@cache
def _compiled_loss(label_dtype: str) -> MachineCode:
    """Compile loss = log(sum(e ** (x - max))) - (x[label] - max) and probabilities = e ** (x - max) / sum(...)."""

    def row_loss(row: Row) -> None:
        label = _class_of(row, label_dtype)
        largest = _largest(row)
        own = row.load(0, _ONE, label)
        total = _store_exponentials(row, largest)
        builder = row.builder
        # In float64, the loss of a label with a probability near 1 is small but not 0.
        distance = builder.fsub(_double(builder, own), _double(builder, largest))
        loss = builder.fsub(builder.call(_declared(builder, "log", _DOUBLE.type), [total]), distance)
        _store(row, builder.fptrunc(loss, _ONE.type), row.of_vector(2, _ONE.type, row.number))
        _divide(row, builder.fptrunc(total, _ONE.type))

    return MachineCode(write_module(4, row_loss), _c_functions())


def _largest(row: Row) -> Value:
    """Return the largest logit of the row, or NaN if a logit is NaN."""

    def value(lanes: Lanes, column: Value) -> Value:
        return row.load(0, lanes, column)

    def larger(a: Value, b: Value) -> Value:
        return EMIT["maximum"](row.builder, None, a, b)

    return row.reduced(DTYPE, -math.inf, value, larger)


def _store_exponentials(row: Row, largest: Value) -> Value:
    """Store e ** (x - largest) as probabilities; return their sum in float64, added from the first to the last."""
    builder = row.builder
    exponential = _declared(builder, "expf", _ONE.type)

    def add(column: Value, so_far: list[Value]) -> list[Value]:
        power = builder.call(exponential, [builder.fsub(row.load(0, _ONE, column), largest)])
        _store(row, power, row.element(3, _ONE.type, column))
        return [builder.fadd(so_far[0], _double(builder, power))]

    return fold(builder, INDEX(0), row.columns, 1, [_DOUBLE.constant(0.0)], add)[0]


def _divide(row: Row, total: Value) -> None:
    """Divide the row of probabilities by ``total``."""

    def divide(lanes: Lanes, column: Value) -> None:
        share = row.builder.fdiv(row.load(3, lanes, column), lanes.spread(row.builder, total))
        store(row.builder, lanes, DTYPE, share, row.element(3, _ONE.type, column))

    row.for_columns(DTYPE, divide)


@cache
def _compiled_gradient(label_dtype: str) -> MachineCode:
    """Compile dlogits = (probabilities - (1 at the label, else 0)) * dloss. dlogits may overwrite the probabilities."""

    def row_gradient(row: Row) -> None:
        builder = row.builder
        label = _class_of(row, label_dtype)
        dloss = load(builder, _ONE, DTYPE, row.of_vector(2, _ONE.type, row.number))
        own = builder.fsub(row.load(0, _ONE, label), _ONE.constant(1.0))

        def scale(lanes: Lanes, column: Value) -> None:
            scaled = builder.fmul(row.load(0, lanes, column), lanes.spread(builder, dloss))
            store(builder, lanes, DTYPE, scaled, row.element(3, _ONE.type, column))

        row.for_columns(DTYPE, scale)
        _store(row, builder.fmul(own, dloss), row.element(3, _ONE.type, label))

    return MachineCode(write_module(4, row_gradient))


def _class_of(row: Row, label_dtype: str) -> Value:
    """Return the label of the row. If the label is out of range, the compiled function returns ``_NO_CLASS``."""
    kind = ir.IntType(_LABEL_BITS[label_dtype])
    label = row.builder.load(row.of_vector(1, kind, row.number), typ=kind)
    label = label if kind == INDEX else row.builder.sext(label, INDEX)
    # Read as an unsigned number, a negative label is out of range.
    row.refuse(row.builder.icmp_unsigned(">=", label, row.columns), _NO_CLASS)
    return label


def _double(builder: ir.IRBuilder, value: Value) -> Value:
    return builder.fpext(value, _DOUBLE.type)


def _store(row: Row, value: Value, place: Value) -> None:
    store(row.builder, _ONE, DTYPE, value, place)


def _declared(builder: ir.IRBuilder, name: str, number: ir.Type) -> ir.Function:
    """Return the declaration of a C function whose argument and result have the type ``number``."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(number, [number]), name)
