"""The verbs of the command line, one per file.

Read in this order:

* ``train``: training, and ``resume=DIR``. ``planned_sweep`` and ``sweep``: sweeps. ``results``: the table at the end.
* ``explain`` (with ``explanation``), ``list``, ``doctor`` and ``new``: before training.
* ``evaluate`` and ``predict``, with ``stored_network`` and ``device_arguments``: trained networks.
* ``compare``, ``rerun``, ``ui`` and ``sync``: stored runs.
* ``help_text``: ``runner --help``. ``plugins``: the option ``--plugin``.
"""
