"""Pieces of strategies that shard layers over workers."""
