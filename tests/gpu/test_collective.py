"""NCCL with a single GPU: it can be loaded, joined, and enqueued."""

from typing import Any

import numpy as np
import pytest

from runner.kernels.gpu.platform import GpuPlatform
from runner.kernels.platform import Work
from tests.gpu.gpus import Gpu
from tests.kernels.gpu.fake_nccl import with_nccl
from tests.kernels.gpu.test_collective import bound, operand

DTYPES = ("float32", "float64", "bfloat16", "int32", "int64")


@pytest.mark.small
def test_a_gpu_alone_has_its_parts_for_sums(gpu: Gpu) -> None:
    runtime: Any = gpu.opened(False)
    if gpu.emulated:
        with_nccl(runtime)
    library = runtime.library("nccl")
    if library is None:
        pytest.skip("NCCL is not installed, nor needed on one GPU")
    platform = GpuPlatform(runtime, 0)
    library.join(library.unique_id(), 0, 1)
    try:
        arrays = [np.arange(1000).astype(np.dtype(dtype)) for dtype in DTYPES]
        placed = [(operand(runtime, array), operand(runtime, np.zeros_like(array))) for array in arrays]
        works = [Work(bound(runtime, 0, 1, part, total), (part.data,), (total.data,)) for part, total in placed]
        call = platform.join(works).call
        for _ in range(3):
            call()
        for array, (_, total) in zip(arrays, placed, strict=True):
            np.testing.assert_array_equal(platform.snapshot(total.data).view(array.dtype), array)
    finally:
        library.leave()
