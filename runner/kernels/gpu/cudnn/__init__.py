"""Convolutions of cuDNN through its graph API, planned once per GPU.

``graphs`` describes a convolution as data and as a graph of cuDNN, ``library`` has the plans of each GPU and finds the
fastest of several, and ``convolution`` has the kernels. Only ``graphs`` and ``library`` call cuDNN.
"""
