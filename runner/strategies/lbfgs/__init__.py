"""Parts of L-BFGS over several processes: portions of a batch, sharded vectors, and step drivers."""
