"""Measurements of the engine. The command that reproduces a measurement is next to its table."""
