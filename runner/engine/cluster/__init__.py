"""Execution of a program on worker processes. Read in this order:

* ``cluster_session``: the master's session, with ``remote_plan``.
* ``worker_group``, ``launchers``, ``command_launcher`` and ``processes``: start, watch, replace and end the workers;
  ``joining``: who may join. ``ray_program``: a program that starts the workers by Ray.
* ``worker_process`` and ``worker``: the process and main loop of a worker.
* ``mailbox``, ``arrivals`` and ``wire_rendezvous``: the messages and tensors of a worker.
* ``assignment`` and ``worker_setup``: documents from the master to a worker.
* ``emulation``: emulation of slow networks and slow workers.
* ``transport``: messages, shared memory and heartbeats.
"""
