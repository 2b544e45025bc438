"""Messages between the processes of a run, with closed schemas and time limits for all waits.

Read in this order:

* ``messages`` and ``encoding``: the messages, the names of peers, and the frames.
* ``endpoint``: the transport interface; ``admission``: the connections and messages that an inbox accepts.
* ``zmq_endpoint``: the implementation of the interface over ZeroMQ; ``zmq_sockets``: its context and socket options.
* ``ticket``: the secrets of a process and the file that contains them; ``curve``: encryption of TCP connections.
* ``shared_memory``: the memory of tensors that are sent.
* ``heartbeat``: detection of silent and stuck workers.
* ``private_directory``: sockets, tickets and files, accessible to this user only.
"""
