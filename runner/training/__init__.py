"""Training runs.

Read the modules in this order; the first three items implement a run from its start to its end:

* ``run``: the entry point, which trains or simulates a checked configuration in a directory and returns a summary.
* ``trainer``: the loop of steps. ``evaluation``: scores, the best metric, early stopping.
* ``kept_states``: when the state of a run is saved or copied. ``saving``: the start, progress and checkpoints of a run.
  ``recovery``: recovery from lost workers. ``restart_budget``: the limit of restarts. ``callbacks``: the calls of the
  user's callbacks. ``recording``: the stored files, facts and results of a run.
* ``build`` makes an ``experiment`` from a configuration; ``devices`` and ``placement`` assign its devices;
  ``launching`` chooses the launcher of its processes; ``preconditions`` and ``memory`` refuse runs that cannot work;
  ``initial_weights`` reads ``init_from``.
* ``simulated_run``: a run that is simulated, not trained. ``simulation``: the times of a configuration on described
  hardware. ``profiles`` and ``link_test``: measured costs of instructions and messages, and their use in a simulation.
  ``comparison``: step times of other strategies. ``first_steps``: the weights after the first updates. ``non_finite``:
  losses that exploded, and the origin of a NaN. ``layers``: sizes of layers. ``graph_picture``: pictures of the graph.
  ``display``: progress on the terminal or in a notebook. ``inference``: scores and predictions of a trained network.
  ``exported``: a trained network in a folder.
* The package ``adaptation``: adaptation to another domain.
"""
