"""Pieces of synchronous data parallelism.

Read in this order:

* ``batch_statistics``: the statistics of batch normalisation, and the gradients of all replicas.
* ``programs``: every share counts, through a collective or through parameter servers that keep the variables.
* ``backup_workers``: the shares that arrive first count; ``first_arrivals`` is the step driver and its record.
"""
