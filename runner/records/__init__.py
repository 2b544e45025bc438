"""The files of a run in its directory, written and read."""
