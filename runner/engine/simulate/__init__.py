"""Execution of plans on a virtual clock, for hardware that a description defines; computes no arrays.

Read ``hardware`` (the description), ``network`` (links and routes), ``costs`` (seconds of an instruction),
``activities`` (a plan as activities of the event loop), ``session`` (the clients of a program on the event loop) and
``spans`` (the timeline of a session).
"""
