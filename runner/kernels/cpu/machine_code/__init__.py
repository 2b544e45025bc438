"""Kernels that LLVM compiles at run time.

Read in this order:

* ``compiler``: compilation for this CPU, and the loop over calls. ``instructions``: what code consists of.
* ``loops``: element-wise programs as loops. ``elementwise``: their kernels. ``threads``: several threads.
* ``rows``: sums, and work along rows. ``classification``: cross-entropies.
* ``pooling``: max pooling. ``products``: products within element-wise programs.
"""
