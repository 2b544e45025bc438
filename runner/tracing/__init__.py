"""Timelines of updates: recording, a file for trace viewers, critical paths, and waits.

Read in this order:

* ``window``: the recording of some updates. ``chrome``: the file for trace viewers.
* ``timeline_index``: look-up of spans and of runs of clients. ``critical_path``, ``summary``: critical paths and waits.
  ``parts``: computation, communication and waiting of an update.
"""
