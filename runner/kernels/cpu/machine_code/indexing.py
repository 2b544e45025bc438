"""Sums of rows by index. NumPy finds equal indices, and compiled loops add the rows from first to last."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from runner.kernels.contract import Arrangement, Array, Attributes, Bound, Buffers, Kernel, Offers, Specs, all_plain
from runner.kernels.cpu.machine_code.compiler import MachineCode, join
from runner.kernels.cpu.machine_code.elementwise import LIBRARY, PRIORITY
from runner.kernels.cpu.machine_code.instructions import INDEX, STORED, Lanes, Value, element
from runner.kernels.cpu.machine_code.rows import DTYPE, Row, bound, write_module
from runner.kernels.reference.rows import check_range
from runner.kernels.registry import Registry

DTYPES = frozenset({DTYPE})
_PLACE_BYTES = 8


def register(registry: Registry) -> None:
    """Add the kernels of this family."""
    registry.add(Kernel("scatter_add", "cpu", LIBRARY, PRIORITY, DTYPES, _arrange_scatter, _bind_scatter))
    registry.add(Kernel("add_equal_rows", "cpu", LIBRARY, PRIORITY, DTYPES, _arrange_equal, _bind_equal))


def _arrange_scatter(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    """Reserve scratch memory for the target of each row. Return None unless the rows are float32."""
    if inputs[1].dtype != DTYPE:
        return None
    return all_plain(inputs, outputs, math.prod(inputs[0].shape) * _PLACE_BYTES)


def _arrange_equal(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    """Reserve scratch memory for the target of each row and for one sum per distinct index."""
    return all_plain(inputs, outputs, inputs[0].shape[0] * _PLACE_BYTES + inputs[1].nbytes)


def _bind_scatter(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    indices, updates = (operand.array for operand in buffers.inputs)
    total = buffers.outputs[0].array
    place = buffers.host_scratch[: indices.size * _PLACE_BYTES].view(np.int64)
    add = _adding(place, updates, total)

    def call() -> None:
        check_range("scatter_add", indices, len(total))
        place[:] = indices.ravel()
        total.fill(0)
        add()

    return call


def _bind_equal(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    indices, updates = (operand.array for operand in buffers.inputs)
    sums, is_first = (operand.array for operand in buffers.outputs)
    scratch, count = buffers.host_scratch, len(indices) * _PLACE_BYTES
    place = scratch[:count].view(np.int64)
    totals = scratch[count : count + updates.nbytes].view(updates.dtype).reshape(updates.shape)
    add = _adding(place, updates, totals)

    def call() -> None:
        _, first, place[:] = np.unique(indices, return_index=True, return_inverse=True)
        totals[: len(first)] = 0
        add()
        # With the mode "raise", NumPy would write to a copy of the output.
        np.take(totals, place, axis=0, out=sums, mode="clip")
        is_first.fill(0)
        is_first[first] = 1

    return call


def _adding(place: Array, rows: Array, total: Array) -> Callable[[], int]:
    """Return a function that adds row i of ``rows`` (n, ...) to row place[i] of ``total``, for i = 0, 1, ..."""
    return join([bound(_compiled(), (place, rows, total), (len(place), math.prod(total.shape[1:])))])


@cache
def _compiled() -> MachineCode:
    """Compile total[place[i]] += rows[i] for all i in order. Arrays: place (int64), rows, total."""

    def add_row(row: Row) -> None:
        builder, (places, _, totals) = row.builder, row.bases
        place = builder.load(element(builder, places, INDEX, row.number), typ=INDEX)
        target = builder.mul(place, row.columns)

        def add(lanes: Lanes, column: Value) -> None:
            at = element(builder, totals, STORED[DTYPE], builder.add(target, column))
            total = builder.fadd(lanes.load(builder, DTYPE, at), row.load(1, lanes, column))
            lanes.store(builder, DTYPE, total, at)

        row.for_columns(add)

    return MachineCode(write_module(3, add_row))
