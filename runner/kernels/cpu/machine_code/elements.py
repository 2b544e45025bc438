"""Loads and stores of elements.

bfloat16 is the upper half of a float32 and is computed as float32; a store rounds to the nearest, ties to even. The
conversion instructions of CPUs are not used because they flush subnormal numbers to zero.
"""

from llvmlite import ir

from runner.kernels.cpu.machine_code.arithmetic import Lanes, Value

STORED: dict[str, ir.Type] = {"float32": ir.FloatType(), "float64": ir.DoubleType(), "bfloat16": ir.IntType(16)}
"""dtype -> type of an element in memory."""

ITEMSIZE = {"float32": 4, "float64": 8, "bfloat16": 2}
"""dtype -> bytes of an element."""

_HALF_BITS = 16


def load(builder: ir.IRBuilder, lanes: Lanes, dtype: str, place: Value) -> Value:
    """Append a load of as many neighbouring elements as there are lanes."""
    stored = builder.load(place, typ=lanes.of(STORED[dtype]), align=ITEMSIZE[dtype])
    if dtype != "bfloat16":
        return stored
    bits = builder.zext(stored, lanes.of(ir.IntType(32)))
    return builder.bitcast(builder.shl(bits, lanes.integer(_HALF_BITS)), lanes.type)


def store(builder: ir.IRBuilder, lanes: Lanes, dtype: str, value: Value, place: Value) -> None:
    """Append a store of the elements in all lanes."""
    stored = _rounded(builder, lanes, value) if dtype == "bfloat16" else value
    builder.store(stored, place, align=ITEMSIZE[dtype])


def fetch_for_writing(builder: ir.IRBuilder, place: Value) -> None:
    """Append a prefetch of a cache line that will be read and written soon. No address is a fault."""
    word = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [ir.PointerType(), word, word, word])
    function = builder.module.globals.get(_PREFETCH) or ir.Function(builder.module, kind, _PREFETCH)
    builder.call(function, [place, word(_FOR_WRITING), word(_INTO_ALL_CACHES), word(_DATA)])


_PREFETCH = "llvm.prefetch.p0"
_FOR_WRITING, _INTO_ALL_CACHES, _DATA = 1, 3, 1


def _rounded(builder: ir.IRBuilder, lanes: Lanes, value: Value) -> Value:
    """The upper halves of float32 numbers, rounded to nearest even; NaN stays NaN."""
    bits = builder.bitcast(value, lanes.of(ir.IntType(32)))
    last = builder.and_(builder.lshr(bits, lanes.integer(_HALF_BITS)), lanes.integer(1))
    # Adding just under half of the last kept place carries if more than half is cut off; adding the last kept bit too
    # carries if exactly half is cut off and this bit is odd. The carry of the largest number gives infinity.
    nearest = builder.add(bits, builder.add(last, lanes.integer(0x7FFF)))
    # A carry could overflow a NaN, so one kept bit marks it as NaN.
    quiet = builder.or_(bits, lanes.integer(0x400000))
    is_nan = builder.fcmp_unordered("uno", value, value)
    chosen = builder.select(is_nan, quiet, nearest)
    return builder.trunc(builder.lshr(chosen, lanes.integer(_HALF_BITS)), lanes.of(ir.IntType(16)))
