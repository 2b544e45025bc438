"""Recorded timelines: a file for trace viewers, critical paths and waits."""
