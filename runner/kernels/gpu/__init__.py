"""Kernels of device type "gpu": our own CUDA C++ sources, cuBLAS for products, cuDNN for convolutions.

Every op has a kernel of library "cuda" from our sources; kernels of faster libraries have a higher priority. Kernels
are created for one :class:`~runner.kernels.gpu.runtime.Runtime`.
"""
