"""Training runs.

Read in this order; the first five files implement a run from its start to its end:

* ``run``: trains a checked configuration in a directory and returns a summary; calls all other modules.
* ``trainer``: the loop of steps. ``evaluation``: scores, the best metric, early stopping.
* ``saving``: start, progress and checkpoints. ``summary``: the result.
* ``build`` wires a configuration into an ``experiment``; ``devices`` and ``placement`` assign its devices;
  ``preconditions`` and ``memory`` refuse runs that cannot work; ``initial_weights`` reads ``init_from``.
* ``comparison``: step times of other strategies. ``non_finite``: the origin of a NaN. ``graph_picture`` and
  ``display``: pictures and the terminal. ``inference``: a trained network on one device.
"""
