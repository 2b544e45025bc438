"""Kernels of device type "gpu": our own CUDA C++ sources, cuBLAS for products, cuDNN for convolutions, NCCL for sums.

Every op but collective_sum has a kernel from our sources, with library "cuda"; faster libraries have higher priority.
Kernels are created for one :class:`~runner.kernels.gpu.runtime.Runtime`.

Read in this order:

* ``runtime``: the interface to CUDA, and bound calls. ``cuda``: the implementation of this interface with CuPy.
* ``platform``: the device type, with ``streams`` and ``feeding``.
* ``driver`` and ``discovery``: the GPUs of this machine. ``nvrtc``: compilation and a cache of machine code.
* ``layouts``: tensor layouts. ``channels``: the division of per-channel work. ``element_loops``, ``element_kernels``
  and ``elementwise``: element-wise ops.
* ``linear`` and ``cublas``: products. ``windows`` and ``cudnn``: convolution and pooling. ``collective``: NCCL.
* ``normalization``, ``reduction``, ``rows``, ``shape``, ``structural``: one family of ops each.
  ``loading``: registration.
"""
