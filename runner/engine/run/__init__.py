"""Execution of plans in one process. Read in this order:

* ``session``: the interface of a session; ``local_session``: the session of one process.
* ``executor``: runs one device's plan, with ``binding`` (memory and calls) and ``calls`` (fusing, timing, checking).
* ``storage``: variables and the arena; ``kernel_table``: the kernels of this process.
* ``step_driver``: the choice of the clients that make an update; ``interleaving``: the order in which overlapping
  clients run.
* ``rendezvous`` and ``wires``: transfers between devices.
* ``inputs``: the inputs of a step, which are read ahead and once for all devices.
* ``recording`` and ``timeline``: traces. ``instruction_times``: times of a plan without the other devices.
"""
