"""Kernels that LLVM compiles at run time.

Read in this order:

* ``compiler``: compilation for this CPU, and the loop over calls. ``instructions``: LLVM instructions.
* ``loops``: element-wise programs as loops. ``elementwise``: kernels with these loops. ``threads``: parallel loops.
* ``copies``: copies of tensors.
* ``rows``: kernels that process rows. ``classification``: cross-entropies. ``indexing``: sums by index.
* ``sums``: sums over axes.
* ``pooling``: max pooling. ``products``: matrix products fused with the element-wise programs that read them.
* ``winograd_tiles``, ``winograd_loops``, ``winograd``: convolutions with 3x3 filters.
* ``activations``: logistic function and tanh. ``recurrent_loops``, ``recurrent``: long short-term memory.
* ``doorbells``: notification between two processes that share memory.
* ``colours``, ``resizing``: image transformations for the input pipeline, which are not ops.
"""
