"""Pieces of synchronous data parallelism: how shares of a batch meet, and whose count."""
