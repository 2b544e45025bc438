"""Pieces of synchronous data parallelism.

Read in this order:

* ``batch_statistics``: the statistics of batch normalisation, and the gradients of all replicas;
  ``pooled_normalization`` is the rewrite for statistics of the whole batch.
* ``collective``: every worker keeps the variables. ``parameter_server``: servers keep them.
* ``backup_workers``: the shares that arrive first count; ``first_arrivals`` is the step driver and its record.
"""
