"""Kernels: the only code that computes on arrays. They import NumPy and the libraries of their device.

Read in this order:

* ``contract``: one way to compute an op on a device type. ``functions``: kernels that are NumPy functions.
* ``registry``: the table of kernels. ``reference`` has a kernel for every op; ``cpu`` and ``gpu`` have faster ones.
* ``platform``: a device type, and the host. ``memory``: memory of the host and of GPUs.
* ``elementwise``: the language of fused element-wise ops. ``philox``: random numbers.
"""
