"""Kernels of device type "gpu": our own CUDA C++ sources, cuBLAS for products, cuDNN for convolutions.

Every op has a kernel of library "cuda" from our sources; kernels of faster libraries have a higher priority. Kernels
are created for one :class:`~runner.kernels.gpu.runtime.Runtime`.

Read in this order:

* ``runtime``: the functions of CUDA that kernels use, and bound calls. ``cuda``: the same functions on CuPy.
* ``platform``: the device type, with ``streams`` and ``feeding``.
* ``driver`` and ``discovery``: the GPUs of this machine. ``nvrtc``: compiled sources and their cache.
* ``layouts`` and ``channels``: the division of work. ``element_loops``, ``element_kernels`` and ``elementwise``:
  element-wise ops.
* ``linear``, with ``cublas``; ``windows``: convolution and pooling, with the folder ``cudnn``; ``collective``: NCCL.
* ``normalization``, ``reduction``, ``rows``, ``shape``, ``structural``: one family of ops each.
  ``loading``: registration.
"""
