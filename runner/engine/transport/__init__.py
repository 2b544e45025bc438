"""Messages between the processes of a run: closed schemas, checked references, deadlines everywhere.

Read in this order:

* ``messages`` and ``header``, on ``schema``, ``references`` and ``documents``: what can be said.
* ``endpoint``: the interface; ``admission``: who may say it, once and in order.
* ``zmq_endpoint`` (``zmq_inbox``, ``zmq_outbox``, ``zmq_options``, ``zmq_context``): between processes.
* ``in_process``: the same promises on a virtual clock, with faults from a seed.
* ``shared_memory`` and ``codec``: bulk tensors and small ones.
* ``heartbeat`` and ``heartbeat_monitor``: who is stuck.
* ``private_directory``, ``address``, ``tokens``: where all this lies, for this user's processes only.
"""
