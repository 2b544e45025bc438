"""Mutated inputs: in this order mutation, targets, campaign; ``python -m tests.fuzz`` runs a campaign."""
