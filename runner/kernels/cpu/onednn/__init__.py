"""Kernels of oneDNN.

Read in this order:

* ``library`` and ``constants``: the C interface. ``memory``: layouts.
* ``recipe``: descriptions, bound calls and the common part of kernels; ``linear`` is a simple one.
* ``convolution``, ``pooling``, ``normalization``, ``softmax``: layers.
* ``convert`` and ``parts``: layouts, casts and rearrangements.
"""
