"""Dataflow graphs: descriptions of computations, independent of the order of execution and of kernels.

Read in this order:

* ``tensor``, ``node``, ``op``: references to values, their producers, and the definition of an op with its rules.
* ``graph``: a growing set of nodes; ``device``: device names, which constrain nodes, and clusters of devices.
* ``expression``: operators on tensors; ``ops``: the definitions of all ops, and functions that add nodes.
* ``autodiff``: gradients, computed by nodes that extend a graph; ``rows``: gradients of a few rows of a table.
* ``initializers``, ``variables``, ``network``: the state and the layers of one copy of a network.
* ``verify``: checks of graphs; ``serialize``: graphs as plain data, for other processes.
"""
