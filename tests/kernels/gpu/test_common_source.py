"""What all sources of a GPU share, on an emulated one."""

from __future__ import annotations

import numpy as np

from runner.kernels.gpu.calls import launch
from runner.kernels.gpu.source import with_common
from tests.kernels.gpu.emulation import EmulatedRuntime

DIVIDE = """
extern "C" __global__ void divide(const int64 *a, const int64 *b, int64 *y, int64 count) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) y[i] = quotient(a[i], b[i]);
}
"""


def test_short_and_long_numbers_are_divided(runtime: EmulatedRuntime) -> None:
    a = np.array([7, 2**32 - 1, 2**32, 2**40 + 5, 5, 2**62], "int64")
    b = np.array([2, 3, 3, 2**33, 2**35, 7], "int64")
    y, stream = np.zeros_like(a), runtime.stream()
    fixed = [*(np.uintp(each.ctypes.data) for each in (a, b, y)), np.int64(len(a))]
    launch(runtime.function(with_common(DIVIDE), "divide"), 1, fixed).enqueue(stream)
    runtime.synchronize(stream)
    np.testing.assert_array_equal(y, a // b)
