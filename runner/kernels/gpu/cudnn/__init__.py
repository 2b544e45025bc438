"""Convolutions of cuDNN, through its graph API: described, planned once for a GPU, executed by address.

``description`` says what is computed, ``graphs`` says it to cuDNN, ``library`` has the plans of each GPU,
``comparison`` takes the fastest of several where that is wanted, and ``convolution`` has the kernels. Only ``graphs``
and ``library`` know cuDNN.
"""
