"""Dataflow graphs: what is computed, without a decision about when and by which kernel.

Read in this order:

* ``tensor``, ``node``, ``op``: references to values, their producers, and the definition of an op with its rules.
* ``graph``: a growing set of nodes; ``device``: the names in their device constraints, and clusters of devices.
* ``expression``: operators on tensors; ``ops``: the definitions of all ops, and functions that add them.
* ``autodiff``: gradients by extending a graph.
* ``initializers``, ``variables``, ``network``: the state and the layers of one copy of a network.
* ``verify``, ``serialize``: checks of graphs, and graphs that cross process boundaries.
"""
