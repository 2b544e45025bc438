"""Sweeps: the plan of the jobs, their locks and outcomes, and the table that compares them."""
