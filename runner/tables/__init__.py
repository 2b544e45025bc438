"""Tables of papers: published numbers next to the results of stored configurations.

Read in this order:

* ``table``: a table as data. ``table_file``: its YAML file. ``verdict``: the meaning of a published number.
* ``measured``: sizes of a network, simulated times, and values of a training run. ``results``: files with these values.
* ``statistics``: the values of a cell over seeds, and the verdict against a published value. ``two_samples``: the tests
  of two cells. ``claims``: the verdicts on the claims of a table.
* ``cells``: verdicts on cells and claims. ``rendering``: a table as text, Markdown, CSV, JSON and LaTeX.
  ``picture``: a table as PNG.
* ``checking``: the check of runs and stored results against the present program.
"""
