"""Pieces of asynchronous data parallelism: replicas, servers, and the order of what they do."""
