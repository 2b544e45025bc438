"""Sweeps: the plan of the jobs, their locks and outcomes, and the table that compares them.

Read in this order:

* ``plan``: the jobs. ``freezing``: files written before the first job starts. ``frozen_job``: the run of one job.
* ``locks``: locks that prevent two processes from running the same job.
* ``outcome``: the result of a job. ``table``: comparison of jobs and of seeds. ``plot``: the metric over swept keys.
* ``report``: the end of a sweep. ``progress``: a line for each job that ends.
* ``grid``: resuming a sweep with another grid, which adds, removes or changes jobs.
"""
