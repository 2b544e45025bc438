"""Pieces of asynchronous data parallelism: replicas, servers, and the order of their events."""
