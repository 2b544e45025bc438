"""Softmax and its logarithm over the last axis, and cross-entropies of logits."""

import math
from functools import partial

import numpy as np

from runner.kernels.contract import Arrange, Arrangement, Attributes, Buffers, Kernel, Offers, Specs, plain
from runner.kernels.functions import arrange_plain
from runner.kernels.gpu.calls import THREADS, Bind, StreamCall, blocks_for, launch, own_kernels
from runner.kernels.gpu.indexing import refusing
from runner.kernels.gpu.layouts import CHANNELS_LAST, channels_last, offered_layout
from runner.kernels.gpu.runtime import Argument, Function, Runtime
from runner.kernels.gpu.source import computed_in, text

ELEMENTS_PER_THREAD = 4
"""Of a row, before the row is given more threads."""


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of softmax, of its logarithm, and of the cross-entropies."""
    table: dict[str, tuple[Arrange, Bind]] = {
        "softmax": (_arrange_in_place, partial(_bind, "softmax")),
        "log_softmax": (_arrange_in_place, partial(_bind, "log_softmax")),
        "softmax_cross_entropy": (arrange_plain, _bind_loss),
        "softmax_cross_entropy_gradient": (_arrange_in_place, _bind_gradient),
        "sigmoid_cross_entropy": (_arrange_sigmoid, _bind_sigmoid),
    }
    return own_kernels(runtime, table)


def of_rows(runtime: Runtime, name: str, dtype: str, label_dtype: str) -> Function:
    """Return a kernel of the source ``softmax``."""
    return runtime.function(text("softmax", T=dtype, A=computed_in(dtype), I=label_dtype), name)


def depth_of(columns: int) -> int:
    """Return the threads per row: a power of two without idle threads."""
    wanted = -(-columns // ELEMENTS_PER_THREAD)
    return min(THREADS, 1 << max(0, wanted - 1).bit_length())


def rows_and_depth(rows: int, columns: int) -> tuple[int, list[Argument]]:
    """Return the blocks for a matrix, and its extents and the threads per row as arguments."""
    depth = depth_of(columns)
    return max(1, -(-rows * depth // THREADS)), [np.int64(rows), np.int64(columns), np.int32(depth)]


def _arrange_in_place(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    """Each thread reads an element for the last time directly before it writes the element."""
    return Arrangement(tuple(map(plain, inputs)), tuple(map(plain, outputs)), in_place=((0, 0),))


def _bind(op: str, runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x,), (y,) = buffers.inputs, buffers.outputs
    *leading, columns = x.spec.shape
    blocks, extents = rows_and_depth(math.prod(leading), columns)
    function = of_rows(runtime, op, x.spec.dtype, "int64")
    return launch(function, blocks, [np.uintp(x.address), np.uintp(y.address), *extents])


def _bind_loss(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    logits, labels = buffers.inputs
    rows, classes = logits.spec.shape
    function = of_rows(runtime, "cross_entropy", logits.spec.dtype, labels.spec.dtype)
    addresses = [np.uintp(operand.address) for operand in (*buffers.inputs, *buffers.outputs)]
    blocks, extents = rows_and_depth(rows, classes)

    arguments = [*addresses, *extents]
    return refusing(runtime, "softmax_cross_entropy", labels, classes, function, blocks, arguments)


def _bind_gradient(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    probabilities, labels, _ = buffers.inputs
    rows, classes = probabilities.spec.shape
    function = of_rows(runtime, "cross_entropy_gradient", probabilities.spec.dtype, labels.spec.dtype)
    addresses = [np.uintp(operand.address) for operand in (*buffers.inputs, *buffers.outputs)]
    blocks, extents = blocks_for(runtime, rows * classes), [np.int64(rows * classes), np.int64(classes)]

    arguments = [*addresses, *extents]
    return refusing(runtime, "softmax_cross_entropy_gradient", labels, classes, function, blocks, arguments)


def _arrange_sigmoid(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    last = offered_layout(outputs[0], offered).tag == CHANNELS_LAST
    lie = channels_last if last else plain
    return Arrangement(tuple(map(lie, inputs)), tuple(map(lie, outputs)), in_place=((0, 0), (1, 0)))


def _bind_sigmoid(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (loss,) = buffers.outputs
    count = math.prod(loss.spec.shape)
    function = of_rows(runtime, "sigmoid_cross_entropy", loss.spec.dtype, "int64")
    addresses = [np.uintp(operand.address) for operand in (*buffers.inputs, loss)]
    return launch(function, blocks_for(runtime, count), [*addresses, np.int64(count)])
