"""Tables of papers: cells that are stored configurations, and claims about them.

Read in this order:

* ``statistics``: the values of one cell, and the verdict against a published value. ``two_samples``: the tests of two
  cells. ``claims``: the verdicts on the claims of a table.
"""
