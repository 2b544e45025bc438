"""Document frames: plain data too large for a header, such as the subgraph of a device.

A document is one msgpack value with its own cap. It is only *data* here: what it must contain is checked by
the closed schema of whoever reads it.
"""

from __future__ import annotations

from runner.engine.transport.schema import Violation
from runner.engine.transport.strict_msgpack import pack, unpack
from runner.errors import SecurityError

MAX_DOCUMENT_BYTES = 64 * 2**20


def encode_document(document: object) -> bytes:
    """Return the frame of a document of maps with text keys, lists, text, bytes, numbers, booleans and None.

    Raises ValueError when it is larger than ``MAX_DOCUMENT_BYTES``, TypeError for any other kind of value.
    """
    frame = pack(document)
    if len(frame) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"document of {len(frame)} bytes, at most {MAX_DOCUMENT_BYTES} can be sent in one frame")
    return frame


def decode_document(frame: memoryview) -> object:
    """Return the plain data of a document frame; raises SecurityError when it is not exactly one document."""
    try:
        return unpack(frame, MAX_DOCUMENT_BYTES)
    except Violation as violation:
        raise SecurityError(f"document frame refused: {violation}") from violation
