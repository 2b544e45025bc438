"""TFRecord files: the examples in them, and an index for reads in any order.

Read in this order: :mod:`runner.system.record_framing`, ``example``, ``index``, ``shards``, ``description``.
"""
