"""Batch normalisation with the ReLU that follows it, and the gradient of both, in as many launches as without."""

from __future__ import annotations

from runner.kernels.contract import Kernel
from runner.kernels.gpu.batch_normalization import gradient_kernel, training_kernel
from runner.kernels.gpu.runtime import Runtime


def kernels(runtime: Runtime) -> list[Kernel]:
    """Normalisation with ReLU."""
    return [training_kernel(runtime, "batch_norm_relu"), gradient_kernel(runtime, "batch_norm_relu_gradient")]
