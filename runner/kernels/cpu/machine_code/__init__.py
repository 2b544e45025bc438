"""Kernels that LLVM compiles at run time. Without llvmlite only ``loading`` can be imported.

Read in this order:

* ``compiler``: compilation for this CPU. ``counting``: loops. ``elements``: loads and stores.
  ``arithmetic`` and ``mathematics``: functions.
* ``loops``: element-wise programs as loops; ``signs`` analyses them. ``elementwise``: the kernels.
* ``threads`` and ``openmp``: several threads. ``dispatch``: the loop over the calls of a step.
* ``rows``, ``classification``, ``column_sums`` and ``sums``: work along rows and columns.
* ``pooling`` and ``pooling_code``: max pooling. ``products``: products within element-wise programs.
* ``loading``: registration.
"""
