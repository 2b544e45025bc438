"""Benchmark processes of other frameworks. Their environments contain the framework and NumPy, but not runner."""
