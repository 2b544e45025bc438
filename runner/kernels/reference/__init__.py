"""NumPy kernels, which define the results of the ops and are the reference for faster kernels.

A fused op without a kernel in this package is decomposed; see :mod:`runner.engine.run.kernel_table`.
Importing this package registers the kernels. The function of a kernel never writes to its inputs. The function may
return a view of an input, because the engine copies the result to the output buffer.

Read ``arithmetic`` first, then every other file in any order.
"""

from runner.kernels.reference import arithmetic, normalization, rows, structural, windows  # noqa: F401 - they register
