"""The configuration: the names and numbers in YAML files become one typed, checked object.

Read in this order:

* ``schema``: the sections and their bounds. ``groups``: the options of each group.
* ``configuration``: YAML to dataclasses. ``check``: combinations of keys.
* ``safe_yaml`` and ``outcome``: stored configurations, their comparison, and values that are not defaults.
* ``devices``, ``launcher``, ``monitor``: devices of a run, launchers of jobs, and the metric that decides the best run.
* ``hydra_app``, ``hydra_sweep``, ``shared_choices``, ``batch_sweeper``, ``command_line``, ``conf_dir``,
  ``error_text``: Hydra, its command line and messages.
"""
