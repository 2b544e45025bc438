"""Plain NumPy kernels: the definition of each op, and the oracle that faster kernels are compared with.

Fused ops without a kernel here are computed by their decomposition; see :mod:`runner.engine.run.kernel_table`.
Importing this package fills the registry. A kernel never writes into its inputs; its function may return a view of
them, which is copied to the output buffer.

Read ``arithmetic`` first; every other file is one family of ops.
"""

from runner.kernels.reference import arithmetic, normalization, rows, structural, windows  # noqa: F401 - they register
