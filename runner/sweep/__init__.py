"""Sweeps: the plan of the jobs, their locks and outcomes, and the table that compares them.

Read in this order:

* ``plan``: the jobs. ``freezing``: files written before the first job. ``frozen_job``: the run of one job.
* ``sweep``: jobs that run in this process. ``locks``: one process per job.
* ``outcome``: the result of a job. ``table``: comparison of jobs and of seeds. ``report``: the end of a sweep.
* ``grid``: the changes to the jobs if a sweep is resumed with another grid.
"""
