"""What a kernel does that met an index that is none: the words of the reference kernel, from what a GPU reports.

By the time that anybody asks, the indices may be overwritten; so the GPU itself looks for the first one that is wrong,
in a launch that ends at once where all were right.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from runner.kernels.contract import Operand
from runner.kernels.gpu.calls import Failures, StreamCall, in_order, launch
from runner.kernels.gpu.runtime import Runtime
from runner.kernels.gpu.source import text

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
