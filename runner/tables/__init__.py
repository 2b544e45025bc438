"""Tables of papers: published numbers beside those of stored configurations.

Read in this order:

* ``table``: the content of a table. ``table_file``: its YAML file. ``sizes``: the parameters and multiply-adds of
  networks. ``measured``: the result of a training run. ``results``: committed files of values.
* ``statistics``: the values of a cell over seeds, and the verdict against a published value. ``two_samples``: the tests
  of two cells. ``claims``: the verdicts on the claims of a table. ``verdict``: the comparison of a value with a
  published number as it is printed.
* ``cells``: the cells and claims, decided. ``rendering``: a table as text, Markdown, CSV, JSON and LaTeX. ``picture``:
  a table as PNG.
"""
