"""Tables of papers: published numbers beside those of stored configurations.

Read ``table_file`` first: the YAML file of a table. ``sizes`` counts the parameters and multiply-adds of its networks,
``results`` stores them in committed files, ``verdict`` compares a value with a published one, and ``rendering`` makes
the table as text, Markdown, CSV and JSON.
"""
