"""Strict msgpack, and document frames: plain data too large for a header, such as the graph of a device.

msgpack alone keeps the last of two equal keys and builds extension types, so one message could mean two things. Here
only maps with text keys, lists, text, bytes, whole numbers, floats, booleans and None are accepted. A document is one
msgpack value with a size limit; its reader checks the content against a closed schema.
"""

import msgpack

from runner.errors import SecurityError
from runner.system.schema import Violation

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


def pack(value: object) -> bytes:
    """Return ``value`` as msgpack; raises TypeError or ValueError if msgpack cannot represent it."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(data: bytes | memoryview, max_bytes: int) -> object:
    """Return the single value in ``data``; raises :class:`Violation` unless it is exactly one accepted value."""
    if len(data) > max_bytes:
        raise Violation(f"{len(data)} bytes, at most {max_bytes} allowed")
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            # Timestamps are an extension type that bypasses the hook.
            max_ext_len=0,
            object_pairs_hook=_unique_map,
            ext_hook=_no_extension,
        )
    except ValueError as error:
        raise Violation(f"not one msgpack value: {type(error).__name__}: {str(error)[:120]}") from error


def _unique_map(pairs: list[tuple[object, object]]) -> dict[str, object]:
    unique: dict[str, object] = {}
    for key, value in pairs:
        if not isinstance(key, str):
            raise ValueError("a key of a map is not text")
        if key in unique:
            raise ValueError("a map has the same key twice")
        unique[key] = value
    return unique


def _no_extension(code: int, data: bytes) -> object:
    raise ValueError(f"extension type {code}")
