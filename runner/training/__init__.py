"""Training runs. A run is in five files: run, trainer, evaluation, saving, summary.

run: from a checked configuration and a directory to a summary; it calls all other modules. trainer: the loop of steps.
evaluation: scores, the best metric, early stopping. saving: start, progress and checkpoints. summary: the result.

Before the run: build wires a configuration into an experiment and opens its session; devices and placement choose where
it is computed; preconditions, memory and gpu_memory refuse runs that cannot work; initial_weights reads ``init_from``.
Besides: comparison (step times of other strategies), non_finite (the origin of a NaN), graph_picture, display, and
inference (a trained network on one device).
"""
