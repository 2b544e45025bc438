"""Tests of tables of papers."""

import copy
from typing import Any


def edited(document: dict[str, Any], **edits: Any) -> dict[str, Any]:
    """Return a copy of a document with other values: "a__b" stands for the key b of the section a."""
    found = copy.deepcopy(document)
    for place, value in edits.items():
        *sections, last = place.split("__")
        section = found
        for name in sections:
            section = section[name]
        section[last] = value
    return found
