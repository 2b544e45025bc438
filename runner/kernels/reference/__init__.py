"""Plain NumPy kernels: the definition of each op, and the reference that faster kernels are compared with.

Fused ops without a kernel in this package are decomposed; see :mod:`runner.engine.run.kernel_table`.
Importing this package fills the registry. A kernel never writes into its inputs; its function may return a view of an
input, which is copied to the output buffer.

Read ``arithmetic`` first; every other file contains one family of ops.
"""

from runner.kernels.reference import arithmetic, normalization, rows, structural, windows  # noqa: F401 - they register
