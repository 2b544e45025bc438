"""Kernels of device type "gpu": CUDA C++ sources of our own, cuBLAS for products, cuDNN for convolutions.

Every op has a kernel of library "cuda" here, from our sources; where a library holds the record, its kernel has a
higher priority. Kernels are made for one :class:`~runner.kernels.gpu.runtime.Runtime`, which they are handed.
"""
