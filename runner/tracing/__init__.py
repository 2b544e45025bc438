"""Recorded timelines: a file for trace viewers, critical paths and waits.

Read in this order:

* ``window``: recording of some updates. ``chrome``: the file for trace viewers.
* ``timeline_index``: order of spans and runs. ``critical_path``: analyses. ``summary``: their results as a document.
"""
