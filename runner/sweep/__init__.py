"""Sweeps: the plan of the jobs, their locks and outcomes, and the table that compares them.

Read in this order:

* ``plan``: the jobs. ``freezing``: files written before the first job starts. ``frozen_job``: the run of one job.
* ``sweep``: jobs that run in this process. ``locks``: locks that prevent two processes from running the same job.
* ``outcome``: the result of a job. ``table``: comparison of jobs and of seeds. ``report``: the end of a sweep.
* ``grid``: resuming a sweep with another grid (set of jobs), which adds, removes or changes jobs.
"""
