"""Rewrites of graphs: each pass takes a graph and returns a new one.

Read in this order:

* ``rewriting``: the terms that all passes share: roots, readers and moved tensors.
* ``optimize``: the list of the passes that make a graph cheaper.
* ``constant_folding``: constants; ``simplification``: removal of unneeded, identity and duplicate nodes.
* ``matching``: the notation of rewrite rules, and the matcher; ``fusion_rules``: the fusions as rules.
* ``fusion_elementwise``: the fusion of chains of element-wise nodes.
* ``lower_collectives``, ``transfers``: the communication between devices.
* ``recomputation``: copies of forward nodes, so that activations need not be kept for the backward pass.
* ``order_writes``: control edges that make all reads of a variable run before its write.
* ``layer_groups``: the layer of each node, for model parallelism.
"""
