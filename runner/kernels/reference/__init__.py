"""Plain NumPy kernels for every op: the definition of the op, and the oracle that faster kernels are held to.

Importing this package fills the registry. A kernel never writes into its inputs; its outputs may be views of
them, or read-only, so whoever holds an output treats it as immutable.
"""

from runner.kernels.reference import (
    activation,
    arithmetic,
    batch_normalization,
    comparison,
    convolution,
    indexing,
    linear,
    local_response_normalization,
    loss,
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
    "comparison",
    "convolution",
    "indexing",
    "linear",
    "local_response_normalization",
    "loss",
    "pooling",
    "random",
    "reduction",
    "shape",
    "structural",
]
