"""Runs that lose processes at random times; ``python -m tests.chaos`` runs a campaign."""
