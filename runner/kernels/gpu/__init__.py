"""Kernels of device type "gpu": our CUDA C++ sources, cuBLAS (products), cuDNN (convolutions), NCCL (sums over GPUs).

Every op but collective_sum has a kernel from our sources, with library "cuda"; faster libraries have higher priority.
Kernels are created for one :class:`~runner.kernels.gpu.runtime.Runtime`.

Read in this order:

* ``runtime``: the interface to CUDA, and calls on streams. ``cuda``: the implementation of this interface with CuPy.
* ``platform``: the execution of calls on a GPU, with ``streams`` (their schedule) and ``feeding`` (copies from the
  host).
* ``driver`` and ``discovery``: the GPUs of this machine. ``nvrtc``: compilation and a cache of machine code.
* ``layouts``: tensor layouts. ``channels``: the division of per-channel work among blocks. ``element_loops``,
  ``element_kernels`` and ``elementwise``: element-wise ops.
* ``linear`` and ``cublas``: products. ``windows`` and ``cudnn``: convolution and pooling. ``collective``: NCCL.
* ``normalization``, ``recurrent``, ``reduction``, ``rows``, ``shape``, ``structural``: one family of ops each.
  ``loading``: registration. ``described``: the description of a GPU, for plans on machines without one.
"""
