"""Recognise by content, not by name, the file formats that runner does not open, to say so in plain words."""

from __future__ import annotations

import re

from runner.errors import CheckpointError

PREFIX_BYTES = 4096

# Protocols 0 and 1 of pickle have no magic number; these are the ways their containers and classes begin.
_OLD_PICKLE = re.compile(rb"(\(dp\d+\n|\(lp\d+\n|\(d[qp]|\(l[qp]|\}q\x00|\]q\x00|c[A-Za-z_][\w.]*\n[A-Za-z_]\w*\n)")

_SIGNATURES = (
    (
        re.compile(rb"\x80[\x02-\x05]"),
        "a pickle (as in .pkl and older .pt files), which can run code when opened",
    ),
    (_OLD_PICKLE, "a pickle (as in .pkl files), which can run code when opened"),
    (
        re.compile(rb"PK(\x03\x04|\x05\x06)"),
        "a zip archive (as in .pt and .npz files), which may hold a pickle",
    ),
    (re.compile(rb"\x93NUMPY"), "a NumPy .npy file"),
    (re.compile(rb"\x89HDF\r\n\x1a\n"), "an HDF5 file (as in .h5 files)"),
    (re.compile(rb"\x1f\x8b"), "a gzip archive"),
    (re.compile(rb".{257}ustar", re.DOTALL), "a tar archive (as in very old .pt files)"),
)


def refuse_foreign(name: str, content: bytes) -> None:
    """Raise CheckpointError when ``content``, the beginning of file ``name``, is of a foreign format."""
    if _begins_like_safetensors(content):
        return  # the length of its header can have the same first bytes as another format's signature
    for signature, description in _SIGNATURES:
        if signature.match(content):
            raise CheckpointError(
                f"{name} is {description}; expected a checkpoint of runner: a directory step-N "
                "with manifest.json and variables.safetensors"
            )


def _begins_like_safetensors(content: bytes) -> bool:
    return content[4:9] == b"\x00\x00\x00\x00{"
