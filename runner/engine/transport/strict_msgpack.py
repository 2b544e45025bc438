"""msgpack with everything refused that a header or a document has no use for.

msgpack alone keeps the last of two equal keys and builds extension types; both would let one message mean two
things. Only maps with text keys, lists, text, bytes, whole numbers, floats, booleans and None come through.
"""

from __future__ import annotations

import msgpack

from runner.engine.transport.schema import Violation


def pack(value: object) -> bytes:
    """Return ``value`` as msgpack; raises TypeError or ValueError for what msgpack cannot say."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(data: bytes | memoryview, max_bytes: int) -> object:
    """Return the one value that ``data`` holds; raises :class:`Violation` for anything but exactly that."""
    if len(data) > max_bytes:
        raise Violation(f"{len(data)} bytes, at most {max_bytes} allowed")
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            # Timestamps are an extension that does not pass through the hook.
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
            raise ValueError("a key of a map comes twice")
        unique[key] = value
    return unique


def _no_extension(code: int, data: bytes) -> object:
    raise ValueError(f"extension type {code}")
