"""TFRecord files: their framing, the examples in them, and an index for reads in any order.

Read in this order: ``framing``, ``example``, ``index``, ``shards``, ``description``.
"""
