"""Plain NumPy kernels: the definition of each op, and the reference that faster kernels are compared with.

Fused ops without a kernel in this package are decomposed; see :mod:`runner.engine.run.kernel_table`.
Importing this package registers the kernels. A kernel never writes to its inputs; the kernel's function may return a
view of an input, which is copied to the output buffer.

Read ``arithmetic`` first; every other file contains one family of ops.
"""

from runner.kernels.reference import arithmetic, normalization, rows, structural, windows  # noqa: F401 - they register
