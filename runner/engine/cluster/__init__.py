"""Execution of a program on worker processes. Read in this order:

* ``cluster_session``: the master's session, with ``remote_plans`` and ``remote_plan``.
* ``starting``, ``launchers`` and ``command_launcher``: the start of the workers. ``joining``: the processes that have
  joined. ``ray_program``: a program that starts the workers with Ray.
* ``worker_group``: messages between the master and the workers, and the replacement of lost workers.
  ``failure_causes``: the causes of failures. ``spares``: the processes that wait to replace lost workers.
  ``supervisor``, ``processes``, ``command_process`` and ``process_exit``: the processes of this host and their exits.
* ``worker_process``, ``worker`` and ``loaded_plan``: the process of a worker, its main loop, and its plans.
  ``preparation``: the preparation of a spare process.
* ``mailbox``, ``arrivals`` and ``wire_rendezvous``: the messages and tensors of a worker.
* ``assignment`` and ``worker_setup``: documents from the master to a worker.
* ``emulation``: emulation of slow networks and slow workers.
* ``transport``: messages, shared memory and heartbeats.
"""
