"""Plain NumPy kernels: the definition of each op, and the oracle that faster kernels are compared with.

Fused ops without a kernel here are computed by their decomposition; see :mod:`runner.engine.run.kernel_table`.
Importing this package fills the registry. A kernel never writes into its inputs; its function may return a view of
them, which is copied to the output buffer.

Read ``linear`` first; every other file is one family of ops. ``windows`` is shared by convolution and pooling.
"""

from runner.kernels.reference import (  # noqa: F401 - these modules register kernels
    batch_normalization,
    convolution,
    elementwise,
    indexing,
    linear,
    local_response_normalization,
    loss,
    pooling,
    random,
    reduction,
    structural,
)
