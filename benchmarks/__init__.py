"""Measurements of the engine, each reproducible by the command that stands beside its table."""
