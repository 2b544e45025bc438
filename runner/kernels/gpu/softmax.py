"""Softmax and its logarithm over the last axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel, Layout, Spec, plain
from runner.kernels.gpu.calls import THREADS, StreamCall, launch
from runner.kernels.gpu.runtime import Argument, Function, Runtime
from runner.kernels.gpu.source import computed_in, text

ELEMENTS_PER_THREAD = 4
"""Of a row, before it is given more threads."""


def kernels(runtime: Runtime) -> list[Kernel]:
    """softmax and log_softmax."""
    return [_kernel(runtime, op) for op in ("softmax", "log_softmax")]


def of_rows(runtime: Runtime, name: str, dtype: str, label_dtype: str) -> Function:
    """A kernel of the source of softmax and its losses."""
    return runtime.function(text("softmax", T=dtype, A=computed_in(dtype), I=label_dtype), name)


def depth_of(columns: int) -> int:
    """Threads of a row: a power of two, as many as have something to do."""
    wanted = -(-columns // ELEMENTS_PER_THREAD)
    return min(THREADS, 1 << max(0, wanted - 1).bit_length())


def rows_and_depth(rows: int, columns: int) -> tuple[int, list[Argument]]:
    """Blocks for a matrix, and its extents and the threads of a row as arguments."""
    depth = depth_of(columns)
    return max(1, -(-rows * depth // THREADS)), [np.int64(rows), np.int64(columns), np.int32(depth)]


def _kernel(runtime: Runtime, op: str) -> Kernel:
    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        (x,), (y,) = buffers.inputs, buffers.outputs
        *leading, columns = x.spec.shape
        blocks, extents = rows_and_depth(int(np.prod(leading, dtype=np.int64)), columns)
        function = of_rows(runtime, op, x.spec.dtype, "int64")
        return launch(function, blocks, [np.uintp(x.address), np.uintp(y.address), *extents])

    return Kernel(op, "gpu", "cuda", 0, FLOATS, _arrange, bind)


def _arrange(
    attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
) -> Arrangement:
    # Every thread reads an element for the last time right before it writes it.
    return Arrangement((plain(inputs[0]),), (plain(outputs[0]),), in_place=((0, 0),))
