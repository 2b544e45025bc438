"""Convolutions of cuDNN through its graph API, planned once per GPU.

``graphs`` describes a convolution as data and as a cuDNN graph, ``library`` stores the plans of each GPU and finds
the fastest, and ``convolution`` defines the kernels. Only ``graphs`` and ``library`` call cuDNN.
"""
