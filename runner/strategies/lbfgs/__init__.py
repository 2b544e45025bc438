"""Pieces of L-BFGS over several processes: portions of a batch, vectors in shards, and who commands them."""
