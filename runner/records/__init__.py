"""Write and read the files in the directory of a run.

Read in this order:

* ``run_directory``: lock, identity and paths of a run. ``record``: the record of a run in progress.
* ``recoveries``: the recoveries of a run. ``summary``: its result.
* ``provenance``: command, machine and code. ``data_facts``: facts about the data.
* ``decisions`` and ``endings``: decisions made while a run trains, recorded so that the run can be repeated.
* ``stored_run``: finding earlier runs. ``late_tracking``: tracking records that are written after the end of their run.
"""
