"""Pieces of synchronous data parallelism.

Read in this order:

* ``batch_statistics``: the statistics of batch normalisation, and the gradients of all replicas.
* ``programs``: programs in which every share counts, with a collective or with parameter servers.
* ``backup_workers``: programs in which the first shares to arrive count; ``first_arrivals`` has their step driver.
"""
