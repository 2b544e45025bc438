"""Kernels of oneDNN.

Read in this order:

* ``library`` and ``constants``: the C interface. ``memory``: layouts.
* ``recipe``: primitive descriptors, bound calls and the common part of kernels. ``linear``: matrix products.
* ``convolution``, ``pooling``, ``normalization``, ``softmax``: layers.
* ``convert`` and ``parts``: conversions of layouts, casts, and rearrangements.
"""
