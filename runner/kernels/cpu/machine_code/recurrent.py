"""Long short-term memory: in each step, one loop computes the product with the recurrent weights and all gates.

The loop runs over blocks of units. A block's columns of the weights, of all four gates, are first packed into a panel
without gaps, once for all steps. The sums of a block of rows stay in registers until the gates are computed, so that
sums are never stored. Backward, the loop over blocks of units computes the gradient of the previous output, dinputs W',
of the next step, and then the gradients of the gates.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from llvmlite import ir

from runner.kernels.contract import (
    Arrangement,
    Attributes,
    Bound,
    Buffers,
    Kernel,
    NativeCall,
    Offers,
    Operand,
    Specs,
    plain,
)
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.activations import sigmoid, tanh
from runner.kernels.cpu.machine_code.compiler import MachineCode, host
from runner.kernels.cpu.machine_code.elementwise import LIBRARY, PRIORITY
from runner.kernels.cpu.machine_code.instructions import (
    INDEX,
    ITEMSIZE,
    STORED,
    Lanes,
    Value,
    fold,
    load,
    repeat,
    store,
)
from runner.kernels.cpu.machine_code.loops import SLICE, element
from runner.kernels.memory import address_of
from runner.kernels.registry import Registry

DTYPE = "float32"
GATES = 4
SUMS = {64: 24, 32: 12}
"""SUMS: vector bytes -> the number of sums in registers; the other registers hold factors."""


def register(registry: Registry) -> None:
    """Add the kernels of lstm and its gradient if the CPU has a fused multiply-add instruction."""
    if not host().multiplies_and_adds:
        return
    for op, inputs, bind in (("lstm", 4, _bind), ("lstm_gradient", 6, _bind_gradient)):
        registry.add(Kernel(op, "cpu", LIBRARY, PRIORITY, frozenset({DTYPE}), _arrange(inputs), bind))


def _arrange(count: int) -> Callable[[Attributes, Specs, Specs, Offers], Arrangement | None]:
    """Return the rule that arranges ``count`` inputs in C order, for a number of units that fills whole vectors."""

    def arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
        weights = inputs[1] if count == GATES else inputs[2]
        if len(inputs) != count or weights.shape[0] % _lanes() or 0 in inputs[0].shape:
            return None
        return Arrangement(tuple(map(plain, inputs)), tuple(map(plain, outputs)), weights.nbytes)

    return arrange


def _lanes() -> int:
    return host().vector_bytes // ITEMSIZE[DTYPE]


def _bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    (inputs, weights, h0, c0), (h, c, gates) = buffers.inputs, buffers.outputs
    (rows, units), panels = h0.spec.shape, address_of(buffers.scratch)
    calls = [_packed(buffers, weights, panels, turned=False)]
    for step in range(h.spec.shape[0]):
        before = [h0.address, c0.address] if step == 0 else [_of_step(each, step - 1) for each in (h, c)]
        places = [
            before[0],
            panels,
            _of_step(inputs, step),
            before[1],
            *(_of_step(each, step) for each in (h, c, gates)),
        ]
        calls.append(_call(_compiled("forward", rows, units), places, units // _lanes(), buffers))
    return calls


def _bind_gradient(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    (dh, dc, weights, c0, c, gates), (dinputs, dh0, dc0) = buffers.inputs, buffers.outputs
    (rows, units), panels = c0.spec.shape, address_of(buffers.scratch)
    steps, blocks = dh.spec.shape[0], units // (_lanes() * _vectors(units))
    calls = [_packed(buffers, weights, panels, turned=True)]
    for step in reversed(range(steps)):
        # Without a next step, the address is not read.
        later = dinputs.address if step == steps - 1 else _of_step(dinputs, step + 1)
        before = c0.address if step == 0 else _of_step(c, step - 1)
        places = [later, panels, *(_of_step(each, step) for each in (dh, dc, c, gates, dinputs)), before, dc0.address]
        kind = "last" if step == steps - 1 else "backward"
        calls.append(_call(_compiled(kind, rows, units), places, blocks, buffers))
    calls.append(_call(_compiled("product", rows, units), [dinputs.address, panels, dh0.address], blocks, buffers))
    return calls


def _of_step(x: Operand, step: int) -> int:
    """Return the address of the matrix of a step in x (T, N, K)."""
    return x.address + x.spec.nbytes // x.spec.shape[0] * step


def _packed(buffers: Buffers, weights: Operand, panels: int, *, turned: bool) -> NativeCall:
    units = weights.spec.shape[0]
    code = _compiled("turned panels" if turned else "panels", 0, units)
    blocks = units // (_lanes() * (_vectors(units) if turned else 1))
    return _call(code, [weights.address, panels], blocks, buffers)


def _call(code: MachineCode, places: Sequence[int], blocks: int, buffers: Buffers) -> NativeCall:
    addresses = np.array(places, np.intp)
    keep = (code, addresses, buffers)
    return threads.on_all(threads.Loop(code.address("slice"), int(addresses.ctypes.data), blocks, 1, keep))


def _vectors(units: int) -> int:
    """Return the vectors of units in a block of the backward loop."""
    return 2 if units % (2 * _lanes()) == 0 else 1


@cache
def _compiled(kind: str, rows: int, units: int) -> MachineCode:
    return MachineCode(write_module(kind, rows, units, host().vector_bytes))


def write_module(kind: str, rows: int, units: int, vector_bytes: int) -> str:
    """Return the LLVM module whose function ``slice`` computes a range of blocks of units. kind: which loop."""
    module = ir.Module("lstm")
    function = ir.Function(module, SLICE, "slice")
    writer = _Writer(ir.IRBuilder(function.append_basic_block("entry")), function.args[0], rows, units, vector_bytes)
    loops: dict[str, tuple[int, Callable[[Value], None]]] = {
        "panels": (2, writer.pack),
        "turned panels": (2, writer.pack_turned),
        "forward": (7, writer.forward),
        "backward": (9, lambda block: writer.backward(block, multiplied=True)),
        "last": (9, lambda block: writer.backward(block, multiplied=False)),
        "product": (3, writer.product),
    }
    arrays, body = loops[kind]
    writer.load_bases(arrays)
    repeat(writer.builder, function.args[1], function.args[2], 1, body)
    writer.builder.ret_void()
    return str(module)


@dataclass
class _Writer:
    """A writer of the instructions for one block of units; see :func:`write_module`."""

    builder: ir.IRBuilder
    arrays: Value
    rows: int
    units: int
    vector_bytes: int

    def __post_init__(self) -> None:
        self.lanes = Lanes(DTYPE, self.vector_bytes // ITEMSIZE[DTYPE])
        self.width = self.lanes.count
        self.vectors = 2 if self.units % (2 * self.width) == 0 else 1
        self.bases: list[Value] = []

    def load_bases(self, count: int) -> None:
        """Append loads of the addresses of the arrays."""
        pointer = ir.PointerType()
        self.bases = [
            self.builder.load(element(self.builder, self.arrays, INDEX, INDEX(k)), typ=pointer) for k in range(count)
        ]

    def pack(self, block: Value) -> None:
        """Copy a block's columns of the weights (H, 4 H): for each row, the vectors of the four gates."""
        first = self._times(block, self.width)

        def copy_row(row: Value) -> None:
            for gate in range(GATES):
                source = self._plus(self._times(row, GATES * self.units), first, gate * self.units)
                line = self._plus(self._times(block, self.units), row)
                target = self._plus(self._times(line, GATES * self.width), gate * self.width)
                self._store(1, target, self._load(0, source))

        repeat(self.builder, INDEX(0), INDEX(self.units), 1, copy_row)

    def pack_turned(self, block: Value) -> None:
        """Copy a block's rows of the weights (H, 4 H) as columns: for each of the 4 H columns, the block's units."""
        columns, block_units = GATES * self.units, self.vectors * self.width
        one = Lanes(DTYPE, 1)

        def copy_row(unit: Value) -> None:
            source = self._times(self._plus(self._times(block, block_units), unit), columns)
            target = self._plus(self._times(block, columns * block_units), unit)

            def copy(column: Value) -> None:
                value = self._load(0, self._plus(source, column), one)
                self._store(1, self._plus(target, self._times(column, block_units)), value, one)

            repeat(self.builder, INDEX(0), INDEX(columns), 1, copy)

        repeat(self.builder, INDEX(0), INDEX(block_units), 1, copy_row)

    def forward(self, block: Value) -> None:
        """Arrays: h before the step, panels, inputs, c before the step, h, c, gates."""
        for first, stop, size in self._row_blocks(GATES):
            repeat(self.builder, INDEX(first), INDEX(stop), size, self._forward_rows(block, size))

    def _forward_rows(self, block: Value, size: int) -> Callable[[Value], None]:
        units, lanes, builder = self.units, self.lanes, self.builder

        def write(row: Value) -> None:
            column = self._times(block, self.width)
            wide = [self._plus(self._times(self._plus(row, r), GATES * units), column) for r in range(size)]
            narrow = [self._plus(self._times(self._plus(row, r), units), column) for r in range(size)]
            begin = [self._load(2, self._plus(place, gate * units)) for place in wide for gate in range(GATES)]
            panel = self._times(block, units * GATES * self.width)
            sums = self._summed(row, size, GATES, (0, units), panel, begin)
            for r in range(size):
                a_i, a_f, a_g, a_o = sums[GATES * r : GATES * (r + 1)]
                i, f, o = (sigmoid(builder, lanes, each) for each in (a_i, a_f, a_o))
                g = tanh(builder, lanes, a_g)
                c = builder.fadd(builder.fmul(f, self._load(3, narrow[r])), builder.fmul(i, g))
                self._store(5, narrow[r], c)
                self._store(4, narrow[r], builder.fmul(o, tanh(builder, lanes, c)))
                for gate, value in enumerate((i, f, g, o)):
                    self._store(6, self._plus(wide[r], gate * units), value)

        return write

    def backward(self, block: Value, *, multiplied: bool) -> None:
        """Arrays: dinputs of the next step, panels, dh, dc, c, gates, dinputs, c before the step, gradient of c."""
        for first, stop, size in self._row_blocks(self.vectors):

            def write(row: Value, size: int = size) -> None:
                into_h = self._product_of(row, size, block) if multiplied else None
                for r in range(size):
                    for v in range(self.vectors):
                        later = None if into_h is None else into_h[self.vectors * r + v]
                        self._backward_vector(self._plus(row, r), self._unit(block, v), later)

            repeat(self.builder, INDEX(first), INDEX(stop), size, write)

    def _backward_vector(self, row: Value, unit: Value, later_h: Value | None) -> None:
        b, units, one = self.builder, self.units, self.lanes.constant(1.0)
        narrow = self._plus(self._times(row, units), unit)
        wide = self._plus(self._times(row, GATES * units), unit)
        i, f, g, o = (self._load(5, self._plus(wide, gate * units)) for gate in range(GATES))
        size = tanh(b, self.lanes, self._load(4, narrow))
        into_h = self._load(2, narrow)
        into_h = into_h if later_h is None else b.fadd(into_h, later_h)
        slope = b.fsub(one, b.fmul(size, size))
        into_c = b.fadd(self._load(3, narrow), b.fmul(b.fmul(into_h, o), slope))
        into_c = into_c if later_h is None else b.fadd(into_c, self._load(8, narrow))
        values = (
            b.fmul(b.fmul(into_c, g), b.fmul(i, b.fsub(one, i))),
            b.fmul(b.fmul(into_c, self._load(7, narrow)), b.fmul(f, b.fsub(one, f))),
            b.fmul(b.fmul(into_c, i), b.fsub(one, b.fmul(g, g))),
            b.fmul(b.fmul(into_h, size), b.fmul(o, b.fsub(one, o))),
        )
        for gate, value in enumerate(values):
            self._store(6, self._plus(wide, gate * units), value)
        self._store(8, narrow, b.fmul(into_c, f))

    def product(self, block: Value) -> None:
        """Arrays: dinputs of the first step, panels, the gradient of h before this step."""
        for first, stop, size in self._row_blocks(self.vectors):

            def write(row: Value, size: int = size) -> None:
                sums = iter(self._product_of(row, size, block))
                for r in range(size):
                    for v in range(self.vectors):
                        place = self._plus(self._times(self._plus(row, r), self.units), self._unit(block, v))
                        self._store(2, place, next(sums))

            repeat(self.builder, INDEX(first), INDEX(stop), size, write)

    def _product_of(self, row: Value, size: int, block: Value) -> list[Value]:
        columns = GATES * self.units
        panel = self._times(block, columns * self.vectors * self.width)
        zeros = [self.lanes.constant(0.0)] * (size * self.vectors)
        return self._summed(row, size, self.vectors, (0, columns), panel, zeros)

    def _summed(
        self, row: Value, size: int, vectors: int, factor_of: tuple[int, int], panel: Value, begin: Sequence[Value]
    ) -> list[Value]:
        """Append sums over terms: row r of array factor_of[0], with factor_of[1] terms, times the vectors of a panel.

        begin: the initial sums, ``vectors`` for each of ``size`` rows.
        """
        array, terms = factor_of
        starts = [self._times(self._plus(row, r), terms) for r in range(size)]

        def add_term(term: Value, sums: list[Value]) -> list[Value]:
            line = self._plus(panel, self._times(term, vectors * self.width))
            right = [self._load(1, self._plus(line, v * self.width)) for v in range(vectors)]
            added = []
            for r in range(size):
                number = self._load(array, self._plus(starts[r], term), Lanes(DTYPE, 1))
                left = self.lanes.spread(self.builder, number)
                own = sums[vectors * r : vectors * (r + 1)]
                added += [
                    self.lanes.intrinsic(self.builder, "fma", left, factor, total)
                    for factor, total in zip(right, own, strict=True)
                ]
            return added

        return fold(self.builder, INDEX(0), INDEX(terms), 1, begin, add_term)

    def _row_blocks(self, vectors: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first row, end, rows of a block), so that all sums of a block fit the registers."""
        most = SUMS[self.vector_bytes] // vectors
        blocks = -(-self.rows // most)
        small, larger = divmod(self.rows, blocks)
        middle = larger * (small + 1)
        yield from (each for each in ((0, middle, small + 1), (middle, self.rows, small)) if each[0] < each[1])

    def _unit(self, block: Value, vector: int) -> Value:
        return self._plus(self._times(block, self.vectors * self.width), vector * self.width)

    def _times(self, value: Value, factor: int) -> Value:
        return self.builder.mul(value, INDEX(factor))

    def _plus(self, value: Value, *others: Value | int) -> Value:
        for other in others:
            value = self.builder.add(value, INDEX(other) if isinstance(other, int) else other)
        return value

    def _load(self, array: int, place: Value, lanes: Lanes | None = None) -> Value:
        address = element(self.builder, self.bases[array], STORED[DTYPE], place)
        return load(self.builder, lanes or self.lanes, DTYPE, address)

    def _store(self, array: int, place: Value, value: Value, lanes: Lanes | None = None) -> None:
        address = element(self.builder, self.bases[array], STORED[DTYPE], place)
        store(self.builder, lanes or self.lanes, DTYPE, value, address)
