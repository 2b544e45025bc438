"""Rows by number: gather, its adjoint scatter_add without atomic additions, and one-hot encoding.

A kernel that meets an index out of range sets a status. The indices may be overwritten before the host reads the
status, so a second launch, which ends at once if all indices are valid, records the first invalid one.
"""

import math
from collections.abc import Sequence

import numpy as np

from runner.kernels.contract import Attributes, Buffers, Kernel, Operand
from runner.kernels.functions import arrange_plain
from runner.kernels.gpu import copies
from runner.kernels.gpu.calls import Failures, StreamCall, blocks_for, in_order, launch, own_kernels
from runner.kernels.gpu.runtime import Argument, Function, Runtime
from runner.kernels.gpu.source import computed_in, text
from runner.kernels.memory import numpy_dtype


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return gather, scatter_add and one_hot; each refuses indices out of range."""
    binds = {"gather": _gather, "scatter_add": _scatter_add, "one_hot": _one_hot}
    return own_kernels(runtime, {op: (arrange_plain, bind) for op, bind in binds.items()})


def _gather(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (table, indices), (y,) = buffers.inputs, buffers.outputs
    rows, *row = table.spec.shape
    itemsize = numpy_dtype(table.spec.dtype).itemsize
    # The size of a row determines the unit of copies. Empty rows move nothing, but their indices are checked.
    unit, ((columns, _),) = copies.in_units([(math.prod(row), 1)], itemsize, (table.address, y.address))
    count = math.prod(indices.spec.shape) * columns
    source = text("indexing", T=copies.UNITS[unit], A="float32", I=indices.spec.dtype)
    fixed = [*_addresses(table, indices, y), np.int64(count), np.int64(columns), np.int64(rows)]
    blocks = blocks_for(runtime, count)
    return refusing(runtime, "gather", indices, rows, runtime.function(source, "gather"), blocks, fixed)


def _scatter_add(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (indices, updates), (y,) = buffers.inputs, buffers.outputs
    count, rows = math.prod(indices.spec.shape), attributes["rows"]
    columns = math.prod(updates.spec.shape[len(indices.spec.shape) :])
    zeros = copies.clear(runtime, y.spec.nbytes, y.address)
    if not count:
        return zeros
    function = _function(runtime, "scatter_add", updates, indices)
    fixed = [*_addresses(indices, updates, y), np.int64(count), np.int64(columns), np.int64(rows)]
    return in_order([zeros, refusing(runtime, "scatter_add", indices, rows, function, count, fixed)])


def _one_hot(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (indices,), (y,) = buffers.inputs, buffers.outputs
    count, depth = math.prod(y.spec.shape), attributes["depth"]
    function = _function(runtime, "one_hot", y, indices)
    fixed = [*_addresses(indices, y), np.int64(count), np.int64(depth)]
    return refusing(runtime, "one_hot", indices, depth, function, blocks_for(runtime, count), fixed)


def _addresses(*operands: Operand) -> list[Argument]:
    return [np.uintp(operand.address) for operand in operands]


def _function(runtime: Runtime, name: str, values: Operand, indices: Operand) -> Function:
    dtype = values.spec.dtype
    return runtime.function(text("indexing", T=dtype, A=computed_in(dtype), I=indices.spec.dtype), name)


_RECORD = 24
"""Bytes: the status in the first four, position and value of the index from byte 8 on."""


def refusing(
    runtime: Runtime,
    op: str,
    indices: Operand,
    rows: int,
    function: Function,
    blocks: int,
    arguments: Sequence[Argument],
) -> StreamCall:
    """Return the launch of a kernel that refuses indices outside 0..rows-1, and of the kernel that records the first.

    arguments: without the last one, the address of the status.
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
    call = launch(function, blocks, [*arguments, failures.argument], failures=failures)
    return in_order([call, launch(runtime.function(source, "report"), 1, fixed)])
