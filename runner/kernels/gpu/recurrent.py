"""Long short-term memory: a matrix product and one kernel for all gates in each step.

Scratch memory: the product of a step (N, 4 H) or, backward, the gradients of h and c from the next step, (N, H) each;
then the scratch memory of the products.
"""

from collections.abc import Iterator

import numpy as np

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel, Offers, Specs, all_plain
from runner.kernels.elementwise import computed_in
from runner.kernels.gpu.cublas import Product
from runner.kernels.gpu.linear import Dense, OwnProducts, multipliers
from runner.kernels.gpu.runtime import Argument, Runtime, StreamCall, aligned, blocks_for, in_order, launch
from runner.kernels.gpu.source import text
from runner.kernels.memory import address_of, numpy_dtype


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of lstm and its gradient for each library of products."""
    return [_Family(runtime, each, op).kernel for each in multipliers(runtime) for op in ("lstm", "lstm_gradient")]


class _Family:
    """The kernel of one op with one library of products."""

    def __init__(self, runtime: Runtime, multiplier: OwnProducts, op: str) -> None:
        self._runtime = runtime
        self._multiplier = multiplier
        self._is_gradient = op == "lstm_gradient"
        self.kernel = Kernel(op, "gpu", multiplier.library, multiplier.priority, FLOATS, self._arrange, self._bind)

    def _arrange(self, attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
        dense = self._product(inputs, wide=True)
        if not self._multiplier.takes(dense):
            return None
        scratch = self._between(dense) + self._multiplier.scratch_bytes(dense)
        return all_plain(inputs, outputs, scratch)

    def _product(self, inputs: Specs, *, wide: bool) -> Dense:
        """Return the product h W of a step or, backward, dinputs W'. wide: whether the result is not rounded."""
        weights, state = (inputs[2], inputs[3]) if self._is_gradient else (inputs[1], inputs[2])
        rows, (units, columns), dtype = state.shape[0], weights.shape, weights.dtype
        result = computed_in(dtype) if wide else dtype
        if self._is_gradient:
            return Dense(Product(rows, units, columns, dtype, result, False, True))
        return Dense(Product(rows, columns, units, dtype, result, False, False))

    def _between(self, dense: Dense) -> int:
        """Return the bytes of the intermediate results; backward, there are two of the size of the product."""
        one = aligned(dense.size * numpy_dtype(dense.product.result).itemsize)
        return 2 * one if self._is_gradient else one

    def _bind(self, attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        calls = self._backward(buffers) if self._is_gradient else self._forward(buffers)
        return in_order(list(calls))

    def _launch(self, name: str, dtype: str, count: int, fixed: list[Argument]) -> StreamCall:
        source = text("lstm", T=dtype, A=computed_in(dtype))
        return launch(self._runtime.function(source, name), blocks_for(self._runtime, count), fixed)

    def _forward(self, buffers: Buffers) -> Iterator[StreamCall]:
        (inputs, weights, h0, c0), (h, c, gates) = buffers.inputs, buffers.outputs
        dense, product = self._product(buffers.specs[0], wide=True), address_of(buffers.scratch)
        rest, dtype = product + self._between(dense), weights.spec.dtype
        steps, rows, units = h.spec.shape
        count = rows * units
        for step in range(steps):
            before = h0.address if step == 0 else h.entry(step - 1)
            yield self._multiplier.call(dense, before, weights.address, 0, product, rest)
            cell = c0.address if step == 0 else c.entry(step - 1)
            places = (product, inputs.entry(step), cell, *(each.entry(step) for each in (h, c, gates)))
            fixed: list[Argument] = [*map(np.uintp, places), np.int64(count), np.int64(units)]
            yield self._launch("forward", dtype, count, fixed)

    def _backward(self, buffers: Buffers) -> Iterator[StreamCall]:
        (dh, dc, weights, c0, c, gates, *more), (dinputs, dh0, dc0) = buffers.inputs, buffers.outputs
        wide, narrow = (self._product(buffers.specs[0], wide=each) for each in (True, False))
        later_h = address_of(buffers.scratch)
        later_c, rest = later_h + self._between(wide) // 2, later_h + self._between(wide)
        dtype, (steps, rows, units) = weights.spec.dtype, dh.spec.shape
        count = rows * units
        for step in reversed(range(steps)):
            before = c0.address if step == 0 else c.entry(step - 1)
            given = more[0].entry(step) if more else 0
            places = (
                *(later_h, later_c, dh.entry(step), dc.entry(step), before),
                *(c.entry(step), gates.entry(step), given, dinputs.entry(step)),
            )
            fixed: list[Argument] = [*map(np.uintp, places), np.int64(count), np.int64(units)]
            yield self._launch("backward", dtype, count, [*fixed, np.int32(step < steps - 1), np.int32(bool(more))])
            dense, target = (narrow, dh0.address) if step == 0 else (wide, later_h)
            yield self._multiplier.call(dense, dinputs.entry(step), weights.address, 0, target, rest)
        convert = self._runtime.function(text("convert", T=computed_in(dtype), R=dtype), "convert")
        yield launch(convert, blocks_for(self._runtime, count), [np.uintp(later_c), dc0, np.int64(count)])
