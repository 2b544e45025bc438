"""The operating system and the terminal. From the rest of the package, these modules import only ``runner.errors``.

Read in any order:

* ``files`` and ``json_file``: durable files, and untrusted JSON. ``schema``: checks of values that are read.
  ``record_framing``: files of records, each with checksums. ``code_cache``: compiled code, kept for later runs.
* ``machine``: cores, CPU and memory. ``shutdown``: Ctrl-C and SIGTERM, and actions at the end of a block.
* ``console`` and ``text``: output to the terminal, and its format. ``redaction``: removal of secrets.
* ``slurm``: the commands of Slurm.
"""
