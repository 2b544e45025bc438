"""Gather, scatter and sums of rows without atomic additions, one-hot rows, softmax along rows, and cross-entropies.

If an index or a label is out of range, a kernel sets a status. The indices may be overwritten before the host reads the
status. Therefore, a second launch, which ends immediately if all indices are valid, records the first invalid index.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from runner.kernels.contract import Arrange, Arrangement, Attributes, Buffers, Kernel, Offers, Operand, Specs
from runner.kernels.elementwise import computed_in
from runner.kernels.functions import arrange_in_place, arrange_plain
from runner.kernels.gpu import shape
from runner.kernels.gpu.layouts import arrange_alike
from runner.kernels.gpu.runtime import (
    THREADS,
    Argument,
    Bind,
    Failures,
    Function,
    Runtime,
    StreamCall,
    blocks_for,
    in_order,
    launch,
    own_kernels,
    power_of_two,
)
from runner.kernels.gpu.source import text
from runner.kernels.memory import numpy_dtype

ELEMENTS_PER_THREAD = 4
"""Elements of a row per thread; longer rows get more threads."""

_RECORD = 24
"""Size of a record in bytes: bytes 0 to 3 are the status, bytes 8 to 23 position and value of the invalid index."""


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of gather, scatter_add, updates of rows, one_hot, softmax, and cross-entropies."""
    table: dict[str, tuple[Arrange, Bind]] = {
        "gather": (arrange_plain, _gather),
        "scatter_add": (arrange_plain, _scatter_add),
        "add_equal_rows": (arrange_plain, _add_equal_rows),
        "put_rows": (arrange_in_place, _put_rows),
        "one_hot": (arrange_plain, _one_hot),
        "softmax": (arrange_in_place, partial(_bind, "softmax")),
        "log_softmax": (arrange_in_place, partial(_bind, "log_softmax")),
        "softmax_cross_entropy": (arrange_plain, _bind_loss),
        "softmax_cross_entropy_gradient": (arrange_in_place, _bind_gradient),
        "sigmoid_cross_entropy": (_arrange_sigmoid, _bind_sigmoid),
    }
    return own_kernels(runtime, table)


def _gather(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (table, indices), (y,) = buffers.inputs, buffers.outputs
    # If the rows are empty, nothing is copied, but their indices are checked.
    return _copied_rows(runtime, "gather", table, indices, table, y)


def _copied_rows(
    runtime: Runtime, op: str, table: Operand, indices: Operand, source: Operand, target: Operand
) -> StreamCall:
    """Return the call that copies, in the largest possible unit, a row of ``source`` for each index of ``table``."""
    rows, *row = table.spec.shape
    itemsize = numpy_dtype(table.spec.dtype).itemsize
    unit, ((columns, _),) = shape.in_units([(math.prod(row), 1)], itemsize, (source.address, target.address))
    count = math.prod(indices.spec.shape) * columns
    fixed: list[Argument] = [indices, source, target, np.int64(count), np.int64(columns), np.int64(rows)]
    function = runtime.function(text("indexing", T=shape.UNITS[unit], A="float32", I=indices.spec.dtype), op)
    return refusing(runtime, op, indices, rows, function, blocks_for(runtime, count), fixed)


def _scatter_add(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (indices, updates), (y,) = buffers.inputs, buffers.outputs
    count, rows = math.prod(indices.spec.shape), attributes["rows"]
    columns = math.prod(updates.spec.shape[len(indices.spec.shape) :])
    zeros = shape.clear(runtime, y.spec.nbytes, y.address)
    if not count:
        return zeros
    function = _function(runtime, "scatter_add", updates, indices)
    fixed: list[Argument] = [indices, updates, y, np.int64(count), np.int64(columns), np.int64(rows)]
    return in_order([zeros, refusing(runtime, "scatter_add", indices, rows, function, count, fixed)])


def _add_equal_rows(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    indices, updates = buffers.inputs
    count, *row = updates.spec.shape
    function = _function(runtime, "add_equal_rows", updates, indices)
    arguments: list[Argument] = [indices, updates, *buffers.outputs, np.int64(count), np.int64(math.prod(row))]
    return launch(function, count, arguments) if count else StreamCall(lambda stream: None)


def _put_rows(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (table, indices, values), (y,) = buffers.inputs, buffers.outputs
    size = math.prod(table.spec.shape)
    kept = shape.copy(runtime, numpy_dtype(table.spec.dtype).itemsize, [(size, 1, 1)], table.address, y.address)
    if not math.prod(values.spec.shape):
        return kept
    return in_order([kept, _copied_rows(runtime, "put_rows", table, indices, values, y)])


def _one_hot(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (indices,), (y,) = buffers.inputs, buffers.outputs
    count, depth = math.prod(y.spec.shape), attributes["depth"]
    function = _function(runtime, "one_hot", y, indices)
    fixed: list[Argument] = [indices, y, np.int64(count), np.int64(depth)]
    return refusing(runtime, "one_hot", indices, depth, function, blocks_for(runtime, count), fixed)


def _function(runtime: Runtime, name: str, values: Operand, indices: Operand) -> Function:
    dtype = values.spec.dtype
    return runtime.function(text("indexing", T=dtype, A=computed_in(dtype), I=indices.spec.dtype), name)


def refusing(
    runtime: Runtime,
    op: str,
    indices: Operand,
    rows: int,
    function: Function,
    blocks: int,
    arguments: Sequence[Argument],
) -> StreamCall:
    """Return two launches: ``function`` detects indices outside 0..rows-1; the second records the first such index.

    arguments: all arguments of ``function`` except the last, which is the address of the status.
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


def of_rows(runtime: Runtime, name: str, dtype: str, label_dtype: str) -> Function:
    """Return the kernel ``name`` of the source ``softmax.cu``."""
    return runtime.function(text("softmax", T=dtype, A=computed_in(dtype), I=label_dtype), name)


def depth_of(columns: int) -> int:
    """Return the number of threads per row, a power of two."""
    return min(THREADS, power_of_two(-(-columns // ELEMENTS_PER_THREAD)))


def rows_and_depth(rows: int, columns: int) -> tuple[int, list[Argument]]:
    """Return the number of blocks for a matrix, and three arguments: rows, columns and threads per row."""
    depth = depth_of(columns)
    return max(1, -(-rows * depth // THREADS)), [np.int64(rows), np.int64(columns), np.int32(depth)]


def _bind(op: str, runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x,), (y,) = buffers.inputs, buffers.outputs
    *leading, columns = x.spec.shape
    blocks, extents = rows_and_depth(math.prod(leading), columns)
    function = of_rows(runtime, op, x.spec.dtype, "int64")
    return launch(function, blocks, [x, y, *extents])


def _bind_loss(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    logits, labels = buffers.inputs
    rows, classes = logits.spec.shape
    function = of_rows(runtime, "cross_entropy", logits.spec.dtype, labels.spec.dtype)
    blocks, extents = rows_and_depth(rows, classes)
    arguments: list[Argument] = [*buffers.inputs, *buffers.outputs, *extents]
    return refusing(runtime, "softmax_cross_entropy", labels, classes, function, blocks, arguments)


def _bind_gradient(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    probabilities, labels, _ = buffers.inputs
    rows, classes = probabilities.spec.shape
    function = of_rows(runtime, "cross_entropy_gradient", probabilities.spec.dtype, labels.spec.dtype)
    extents = [np.int64(rows * classes), np.int64(classes)]
    arguments: list[Argument] = [*buffers.inputs, *buffers.outputs, *extents]
    blocks = blocks_for(runtime, rows * classes)
    return refusing(runtime, "softmax_cross_entropy_gradient", labels, classes, function, blocks, arguments)


def _arrange_sigmoid(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    return replace(arrange_alike(attributes, inputs, outputs, offered), in_place=((0, 0), (1, 0)))


def _bind_sigmoid(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (loss,) = buffers.outputs
    count = math.prod(loss.spec.shape)
    function = of_rows(runtime, "sigmoid_cross_entropy", loss.spec.dtype, "int64")
    arguments: list[Argument] = [*buffers.inputs, loss, np.int64(count)]
    return launch(function, blocks_for(runtime, count), arguments)
