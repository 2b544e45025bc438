"""Kernels: the only code that computes on arrays. Kernels import NumPy and the libraries of their device.

Read in this order:

* ``contract``: the data that describe a kernel. ``functions``: kernels that are NumPy functions.
* ``registry``: the table of kernels. ``reference`` has a kernel for every op; ``cpu`` and ``gpu`` have faster kernels.
* ``platform``: the interface of a device type, and the host as a device. ``memory``: memory of the host and of GPUs.
* ``elementwise``: the language of fused element-wise ops. ``philox``: random numbers.
"""
