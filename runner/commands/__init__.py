"""The verbs of the command line (``runner VERB``), one per module, and modules that several verbs use.

Read in this order:

* ``train``: training, ``resume=DIR``, and the table of results. ``supervise``: the option ``--supervise``.
  ``submission``: runs that Slurm executes later. ``planned_sweep`` and ``sweep``: sweeps.
* ``explain`` (with ``explanation``), ``simulate`` (with ``simulated_text``), ``profile``, ``recommend``, ``list``,
  ``doctor`` and ``new``: for use before training.
* ``data``: datasets. ``evaluate``, ``adapt`` and ``predict``, with ``stored_network``: the use of trained networks.
* ``compare``, ``rerun``, ``ui`` and ``sync``: the use of stored runs. ``table``, with ``table_files`` and
  ``table_run``: tables of papers.
* ``help_text``: ``runner --help``. ``completion``: completion in a shell. ``plugins``: the option ``--plugin``.
"""
