"""Sweeps: the plan of the jobs, their locks and outcomes, and the table that compares them.

Read in this order:

* ``plan``: the jobs. ``freezing``: the files of a sweep before its first job. ``frozen_job``: the run of one job.
* ``sweep``: jobs in this process, even jobs chosen by earlier results. ``locks``: one process per job.
* ``outcome``: the result of a job. ``table``: comparison of jobs and of seeds. ``report``: the end of a sweep.
* ``grid``: resume with another grid.
"""
