"""Recorded timelines to look at: a file for trace viewers, and what decided how long a step took."""
