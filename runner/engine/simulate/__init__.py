"""Execution of plans on a virtual clock, for hardware that a description defines; computes no arrays.

Read ``hardware`` and ``disturbances`` (the description), ``network`` (links and routes), ``profile`` (measured costs),
``costs`` (seconds of an instruction), ``hosts`` (cores that processes share), ``activities`` (a plan as activities of
the event loop), ``draws`` (disturbances in a simulation), ``session`` (the clients of a program on
the event loop), ``spans`` (the timeline of a session) and ``memory`` (the tensors of a plan).
"""
