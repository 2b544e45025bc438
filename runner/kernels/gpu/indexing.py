"""Rows by number: gather, its adjoint scatter_add without atomic additions, and one-hot encoding.

A kernel that meets an index out of range sets a status. The indices may be overwritten before the host reads the
status, so a second launch, which ends at once if all indices are valid, records the first invalid one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel, Operand
from runner.kernels.functions import arrange_plain
from runner.kernels.gpu import copies
from runner.kernels.gpu.calls import Failures, StreamCall, blocks_for, in_order, launch
from runner.kernels.gpu.runtime import Runtime
from runner.kernels.gpu.source import computed_in, text
from runner.kernels.memory import numpy_dtype


def kernels(runtime: Runtime) -> list[Kernel]:
    """gather, scatter_add and one_hot; each refuses indices out of range."""

    def bind_gather(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        return _gather(runtime, buffers)

    def bind_scatter(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        return _scatter_add(runtime, attributes["rows"], buffers)

    def bind_one_hot(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        return _one_hot(runtime, attributes["depth"], buffers)

    return [
        Kernel("gather", "gpu", "cuda", 0, FLOATS, arrange_plain, bind_gather),
        Kernel("scatter_add", "gpu", "cuda", 0, FLOATS, arrange_plain, bind_scatter),
        Kernel("one_hot", "gpu", "cuda", 0, FLOATS, arrange_plain, bind_one_hot),
    ]


def _gather(runtime: Runtime, buffers: Buffers) -> StreamCall:
    (table, indices), (y,) = buffers.inputs, buffers.outputs
    rows, *row = table.spec.shape
    itemsize = numpy_dtype(table.spec.dtype).itemsize
    # A row that is not empty decides in which units it can be moved; one that is moves nothing, but has an index.
    unit, ((columns, _),) = copies.in_units([(math.prod(row), 1)], itemsize, (table.address, y.address))
    count = math.prod(indices.spec.shape) * columns
    source = text("indexing", T=copies.UNITS[unit], A="float32", I=indices.spec.dtype)
    function = runtime.function(source, "gather")

    def call(failures: Failures) -> StreamCall:
        fixed = [
            *(np.uintp(operand.address) for operand in (table, indices, y)),
            *(np.int64(count), np.int64(columns), np.int64(rows), failures.argument),
        ]
        return launch(function, blocks_for(runtime, count), fixed, failures=failures)

    return refusing(runtime, "gather", indices, rows, call)


def _scatter_add(runtime: Runtime, rows: int, buffers: Buffers) -> StreamCall:
    (indices, updates), (y,) = buffers.inputs, buffers.outputs
    count = math.prod(indices.spec.shape)
    columns = math.prod(updates.spec.shape[len(indices.spec.shape) :])
    dtype = updates.spec.dtype
    zeros = copies.clear(runtime, y.spec.nbytes, y.address)
    if not count:
        return zeros
    function = runtime.function(text("indexing", T=dtype, A=computed_in(dtype), I=indices.spec.dtype), "scatter_add")

    def call(failures: Failures) -> StreamCall:
        fixed = [
            *(np.uintp(operand.address) for operand in (indices, updates, y)),
            *(np.int64(count), np.int64(columns), np.int64(rows), failures.argument),
        ]
        return launch(function, count, fixed, failures=failures)

    return in_order([zeros, refusing(runtime, "scatter_add", indices, rows, call)])


def _one_hot(runtime: Runtime, depth: int, buffers: Buffers) -> StreamCall:
    (indices,), (y,) = buffers.inputs, buffers.outputs
    count = math.prod(y.spec.shape)
    dtype = y.spec.dtype
    function = runtime.function(text("indexing", T=dtype, A=computed_in(dtype), I=indices.spec.dtype), "one_hot")

    def call(failures: Failures) -> StreamCall:
        fixed = [
            *(np.uintp(indices.address), np.uintp(y.address)),
            *(np.int64(count), np.int64(depth), failures.argument),
        ]
        return launch(function, blocks_for(runtime, count), fixed, failures=failures)

    return refusing(runtime, "one_hot", indices, depth, call)


_RECORD = 24
"""Bytes: the status in the first four, position and value of the index from the eighth on."""


def refusing(
    runtime: Runtime, op: str, indices: Operand, rows: int, call: Callable[[Failures], StreamCall]
) -> StreamCall:
    """A call whose kernel refuses indices outside 0..rows-1, and that of the kernel which says what was refused.

    call: makes the call of the kernel from where it is to set a status.
    """
    record = runtime.pinned(_RECORD)
    record[:] = 0
    found = record[8:].view(np.int64)

    def explain(status: int) -> str:
        position, value = (int(number) for number in found)
        place = [int(axis) for axis in np.unravel_index(position, indices.spec.shape)]
        return f"IndexError: op {op!r}: index {value} at {place} is outside 0..{rows - 1}"

    failures = Failures(record[:4].view(np.int32), explain)
    count = int(np.prod(indices.spec.shape, dtype=np.int64))
    source = text("indexing", T="float32", A="float32", I=indices.spec.dtype)
    fixed = [
        *(np.uintp(indices.address), np.int64(count), np.int64(rows)),
        *(failures.argument, np.uintp(found.ctypes.data)),
    ]
    return in_order([call(failures), launch(runtime.function(source, "report"), 1, fixed)])
