"""The files of a run in its directory, written and read.

Read in this order:

* ``run_directory``: lock, identity and paths of a run. ``record``: the record of a run in progress.
* ``summary``: the result. ``provenance``: the origin of the code and the machine. ``data_facts``: facts of the data.
* ``decisions`` and ``endings``: the recorded decisions of a run, with which it can be repeated.
* ``stored_run``: earlier runs. ``late_tracking``: tracking records that are written after the end of their run.
"""
