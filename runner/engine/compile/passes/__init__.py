"""Rewrites of graphs: each pass takes a graph and returns a new one.

Read in this order:

* ``rewriting``: roots, readers and moved tensors, which all passes share.
* ``optimize``: the list of the passes that make a graph cheaper.
* ``constant_folding``: constants; ``simplification``: partial execution, dead code, identities and equal nodes.
* ``matching``: the notation of rewrite rules, and the matcher; ``fusion_rules``: the fusions as rules.
* ``fusion_elementwise``: the fusion of chains of element-wise nodes.
* ``lower_collectives``, ``transfers``: edges between devices.
* ``order_writes``: all reads of a variable before its write.
* ``layer_groups``: the layer of each node, for model parallelism.
"""
