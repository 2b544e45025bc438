"""Kernels of device type "gpu": our own CUDA C++ sources, cuBLAS for products, cuDNN for convolutions.

Every op has a kernel of library "cuda" from our sources; kernels of faster libraries have a higher priority. Kernels
are created for one :class:`~runner.kernels.gpu.runtime.Runtime`.

Read in this order:

* ``runtime``: the functions of CUDA that kernels use. ``cuda``: the same on CuPy. ``calls``: bound calls.
* ``platform``: the device type, with ``streams``, ``feeding`` and ``copies``.
* ``driver``, ``nvml`` and ``discovery``: the GPUs of this machine. ``nvrtc`` and ``kept_code``: compiled sources.
* ``layouts``, ``broadcasting`` and ``channels``: the division of work. ``expressions``, ``element_loops``,
  ``element_kernels``, ``elementwise`` and ``batched``: element-wise ops.
* ``linear`` and ``fused_linear``, with ``cublas``; ``convolution``, with the folder ``cudnn``; ``collective``, with
  ``nccl``.
* ``batch_normalization``, ``indexing``, ``local_response_normalization``, ``pooling``, ``random``, ``reduction``,
  ``shape``, ``softmax``, ``structural``: one family of ops each. ``loading``: registration.
"""
