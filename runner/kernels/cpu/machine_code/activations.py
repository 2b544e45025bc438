"""The logistic function and tanh of float32 vectors in LLVM instructions, with errors of a few units in the last place.

NaN gives NaN.
"""

from collections.abc import Sequence

from llvmlite import ir

from runner.kernels.cpu.machine_code.instructions import EMIT, Lanes, Value

_LARGEST = 88.3762626647949
"""The largest x for which the exponential function below is finite."""

_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
"""Coefficients of expf in the Cephes library (Moshier)."""

_TANH_LARGEST = 7.90531110763549805
_TANH_ABOVE = (
    *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08),
    *(1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
)
_TANH_BELOW = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
"""The rational approximation x P(x^2) / Q(x^2) of the library Eigen."""

_FRACTION_BITS, _BIAS = 23, 127


def sigmoid(builder: ir.IRBuilder, lanes: Lanes, x: Value) -> Value:
    """Append 1 / (1 + e ** -x)."""
    one = lanes.constant(1.0)
    return builder.fdiv(one, builder.fadd(one, _exp(builder, lanes, builder.fneg(x))))


def tanh(builder: ir.IRBuilder, lanes: Lanes, x: Value) -> Value:
    """Append tanh(x)."""
    x = _clamped(builder, lanes, x, _TANH_LARGEST)
    square = builder.fmul(x, x)
    above = builder.fmul(x, _polynomial(builder, lanes, square, _TANH_ABOVE))
    return builder.fdiv(above, _polynomial(builder, lanes, square, _TANH_BELOW))


def _exp(builder: ir.IRBuilder, lanes: Lanes, x: Value) -> Value:
    """Append e ** x = 2 ** n e ** r, where n is an integer and r is at most ln(2) / 2 in magnitude."""
    x = _clamped(builder, lanes, x, _LARGEST)
    scaled = builder.fadd(builder.fmul(x, lanes.constant(_LOG2_E)), lanes.constant(0.5))
    power = lanes.intrinsic(builder, "floor", scaled)
    for part in (_LN2_HIGH, _LN2_LOW):
        x = builder.fsub(x, builder.fmul(power, lanes.constant(part)))
    tail = builder.fmul(_polynomial(builder, lanes, x, _EXP), builder.fmul(x, x))
    value = builder.fadd(builder.fadd(tail, x), lanes.constant(1.0))
    # The conversion of NaN to an integer is undefined, and ``value`` is already NaN.
    power = builder.select(builder.fcmp_ordered("ord", power, power), power, lanes.constant(0.0))
    exponent = builder.add(builder.fptosi(power, lanes.of(ir.IntType(32))), lanes.integer(_BIAS))
    return builder.fmul(value, builder.bitcast(builder.shl(exponent, lanes.integer(_FRACTION_BITS)), lanes.type))


def _clamped(builder: ir.IRBuilder, lanes: Lanes, x: Value, largest: float) -> Value:
    low = EMIT["maximum"](builder, lanes, x, lanes.constant(-largest))
    return EMIT["minimum"](builder, lanes, low, lanes.constant(largest))


def _polynomial(builder: ir.IRBuilder, lanes: Lanes, x: Value, coefficients: Sequence[float]) -> Value:
    """Append a polynomial by Horner's rule. coefficients: from the highest power to the lowest."""
    total = lanes.constant(coefficients[0])
    for each in coefficients[1:]:
        total = lanes.intrinsic(builder, "fma", total, x, lanes.constant(each))
    return total
