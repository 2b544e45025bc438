"""What a checkpoint may contain, checked when one is written and when one is read."""

from __future__ import annotations

import re

FORMAT_VERSION = 1

MANIFEST_FILE = "manifest.json"
SHARD_FILE = "variables.safetensors"

MAX_MANIFEST_BYTES = 1_000_000
MAX_HEADER_BYTES = 8_000_000
MAX_VARIABLES = 100_000
MAX_DIMENSIONS = 8

MINIMUM_KEEP = 3

DTYPES = ("float32", "float64", "int32", "int64", "uint8", "bool")

VARIABLE_RULE = "1 to 512 letters, digits and the characters _ . / -, not __metadata__"
FILE_RULE = "1 to 128 letters, digits and the characters _ . -, not . or .. or manifest.json"

_VARIABLE = re.compile(r"[A-Za-z0-9._/-]{1,512}")
_FILE = re.compile(r"[A-Za-z0-9._-]{1,128}")


def is_variable_name(name: object) -> bool:
    """Tell whether ``name`` may name a variable. ``__metadata__`` is what safetensors calls its own notes."""
    return isinstance(name, str) and bool(_VARIABLE.fullmatch(name)) and name != "__metadata__"


def is_file_name(name: object) -> bool:
    """Tell whether ``name`` may name a file beside the manifest: one path component, leading nowhere else."""
    return isinstance(name, str) and bool(_FILE.fullmatch(name)) and name not in (".", "..", MANIFEST_FILE)


def shown(value: object) -> str:
    """Return ``value`` as it may appear in a message: escaped and short, whoever wrote it."""
    escaped = ascii(value)
    return escaped if len(escaped) <= 80 else f"{escaped[:77]}..."
