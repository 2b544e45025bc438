"""The event loop on a virtual clock: units run one activity at a time, and links are shared fairly.

Read ``loop`` (activities and their results), ``state`` (the arrays), ``storage`` (their growth), ``advance`` (what
happens at an instant), ``fair_shares`` (the division of links), ``event_queue`` and ``unit_queue`` (the two heaps).
"""
