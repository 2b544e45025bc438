"""Messages between the processes of a run, with closed schemas, checked references and time limits for all waits.

Read in this order:

* ``messages`` and ``encoding``: the messages, the names of peers, and the frames.
* ``endpoint``: the interface; ``admission``: accepts connections, and each message once and in order.
* ``zmq_endpoint``, with ``zmq_sockets``: the endpoint between processes.
* ``shared_memory``: the bytes of tensors, and references to them.
* ``heartbeat``: detection of silent and stuck workers.
* ``private_directory``: sockets, tokens and files, accessible to this user only.
"""
