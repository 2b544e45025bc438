"""Pieces of strategies that shard layers over workers.

Read in this order:

* ``blueprint``: a forward pass in a separate graph, from which nodes are copied, and the unit ranges of shards.
* For ``parallelism.shard``: ``layer_cuts`` chooses the layers, ``sharded_network`` adds the network.
* For ``hybrid``: ``network_parts`` splits the network and the batch. ``hybrid_layers`` adds all layers;
  dense layers follow the rules of ``dense_sharding`` and ``dense_loss``. ``dense_training`` trains the dense layers.
"""
