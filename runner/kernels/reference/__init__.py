"""Plain NumPy kernels: the definition of each op, and the reference that faster kernels are compared with.

Fused ops without a kernel in this package are decomposed; see :mod:`runner.engine.run.kernel_table`.
Importing this package registers the kernels. The function of a kernel never writes to its inputs. It may return a view
of an input, because its result is then copied to the output buffer.

Read ``arithmetic`` first; every other file contains related ops and can be read separately.
"""

from runner.kernels.reference import arithmetic, normalization, rows, structural, windows  # noqa: F401 - they register
