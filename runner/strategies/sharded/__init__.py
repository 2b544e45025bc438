"""Pieces of strategies that cut layers over workers."""
