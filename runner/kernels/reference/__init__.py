"""Plain NumPy kernels for every op: the definition of the op, and the oracle that faster kernels are held to.

Importing this package fills the registry. A kernel never writes into its inputs. What its function returns may be a
view of them: it is copied to where the output lies.
"""

from runner.kernels.reference import (
    activation,
    arithmetic,
    batch_normalization,
    collective,
    comparison,
    convolution,
    elementwise,
    fused_convolution,
    fused_linear,
    fused_normalization,
    indexing,
    linear,
    local_response_normalization,
    loss,
    matmul_elementwise,
    narrowed_linear,
    pooling,
    random,
    reduction,
    shape,
    structural,
)

__all__ = [
    "activation",
    "arithmetic",
    "batch_normalization",
    "collective",
    "comparison",
    "convolution",
    "elementwise",
    "fused_convolution",
    "fused_linear",
    "fused_normalization",
    "indexing",
    "linear",
    "local_response_normalization",
    "loss",
    "matmul_elementwise",
    "narrowed_linear",
    "pooling",
    "random",
    "reduction",
    "shape",
    "structural",
]
