"""Messages between the processes of a run: closed schemas, checked references, deadlines everywhere.

Read in this order:

* ``messages`` and ``header``, with ``references`` and ``documents``: the messages and their encoding.
* ``endpoint``: the interface; ``admission``: the senders accepted, and each message once and in order.
* ``zmq_endpoint`` (``zmq_inbox``, ``zmq_outbox``, ``zmq_sockets``): between processes.
* ``shared_memory``: the bytes of tensors.
* ``heartbeat`` and ``heartbeat_monitor``: detection of silent and stuck workers.
* ``private_directory``, ``address``, ``names``, ``tokens``: files and sockets, accessible to this user only.
"""
