"""Compilation: from the program of a strategy to the plans that devices execute.

Read in this order:

* ``program``: a graph and its clients, with their inputs.
* ``compile``: the pipeline for one client: place, prune, optimize, insert transfers, schedule, split, plan.
* ``passes``: the rewrites of graphs in this pipeline; this package states its own reading order.
* ``placement``, ``earliest_finish``: the choice of a device for each node; ``cost``: estimated durations of nodes.
* ``schedule``: the order in which each device runs its nodes.
* ``plan``: instructions, slots (values) and places (their memory); ``planner``, ``layouts``, ``memory``: the planning.
* ``program_plans``: the plans of all clients of a program, which use the same layouts of variables.
* ``program_placement``: the search for the placement of a program.
* ``tensor_messages``: the messages in which a device sends its tensors.
* ``transfer_times``: estimates of the transfers in a step.
"""
