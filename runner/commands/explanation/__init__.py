"""The parts of the text of ``runner explain``: ``layers``, ``devices`` with the placement, and ``wires``, the links."""
