"""Convolutions of cuDNN through its graph API: described, planned once per GPU, executed by address.

``graphs`` describes a convolution as data and as a graph of cuDNN, ``library`` has the plans of each GPU and finds the
fastest of several, and ``convolution`` has the kernels. Only ``graphs`` and ``library`` know cuDNN.
"""
