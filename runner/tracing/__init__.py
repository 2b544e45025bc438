"""Timelines of updates: recording, a file for trace viewers, critical paths, and waits.

Read in this order:

* ``window``: the recording of some updates. ``chrome``: the file for trace viewers.
* ``timeline_index``: look-up of spans and runs. ``critical_path``: critical paths and waits. ``summary``: both as JSON.
"""
