"""Parts of the text of ``runner explain``: ``layers``, ``devices`` (with placement), ``wires`` (transfers by link)."""
