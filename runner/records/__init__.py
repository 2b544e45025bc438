"""Write and read the files in the directory of a run.

Read in this order:

* ``run_directory``: lock, identity and paths of a run. ``record``: the record of a run in progress.
* ``summary``: the result. ``provenance``: command, machine and code. ``data_facts``: facts about the data.
* ``decisions`` and ``endings``: the recorded decisions of a run, from which it can be repeated.
* ``stored_run``: earlier runs. ``late_tracking``: tracking records that are written after the end of their run.
"""
