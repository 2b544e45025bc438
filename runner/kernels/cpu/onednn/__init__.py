"""Kernels of oneDNN.

Read in this order:

* ``library`` and ``constants``: the C interface. ``memory``: layouts. ``primitive``: descriptions and bound calls.
* ``recipe``: the common part of kernels; ``linear`` is a simple one.
* ``convolution``, ``pooling``, ``batch_normalization``, ``local_response_normalization``, ``softmax``: layers.
* ``convert`` and ``parts``: layouts, casts and rearrangements. ``loading``: registration.
"""
