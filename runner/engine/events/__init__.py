"""The event loop on a virtual clock: units run one activity at a time, and links are shared fairly.

Read ``loop`` (activities and their results), ``state`` (the arrays), ``storage`` (growth of the arrays), ``advance``
(the events of an instant), ``fair_shares`` (the division of links), ``event_queue`` and ``unit_queue`` (the two heaps).
"""
