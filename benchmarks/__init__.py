"""Measurements of the engine, each reproducible by the command next to its table."""
