"""Tables of papers: published numbers beside those of stored configurations.

Read in this order:

* ``table``: the content of a table. ``table_file``: its YAML file. ``verdict``: the comparison of an exact value with a published one.
* ``sizes``: the parameters and multiply-adds of networks. ``results``: committed files of values. ``rendering``: a
  table as text, Markdown, CSV and JSON.
* ``statistics``: the values of a cell over seeds, and the verdict against a published value. ``two_samples``: the tests
  of two cells. ``claims``: the verdicts on the claims of a table.
* ``measured``: the result of a training run. ``cells``: the cells and claims, decided.
"""
