"""Encoding of messages: strict msgpack, header frames and document frames.

By default, msgpack keeps the last of two equal keys and decodes extension types, so one message could have two
meanings. Only plain data is accepted: None, booleans, integers, floats, text, bytes, lists, maps with text keys.

A header is one msgpack map: the protocol version ``v``, the fields of :class:`Envelope`, ``kind``, and the fields of
that kind. A document is plain data too large for a header, such as the graph of a device: one msgpack value with a size
limit. The reader of a document checks the content against a closed schema.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgpack

from runner.engine.cluster.transport.messages import KINDS, Message
from runner.errors import SecurityError
from runner.system.schema import Integer, Record, Text, Violation
from runner.system.text import printable

MAX_DOCUMENT_BYTES = 64 * 2**20


def encode_document(document: object) -> bytes:
    """Return the frame of a document, which must be plain data as defined in the module docstring.

    Raises ValueError if the frame is larger than ``MAX_DOCUMENT_BYTES``, TypeError if a value has another type.
    """
    frame = pack(document)
    if len(frame) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"document of {len(frame)} bytes: expected at most {MAX_DOCUMENT_BYTES}")
    return frame


def decode_document(frame: memoryview) -> object:
    """Return the plain data of a document frame; raises SecurityError unless the frame is exactly one document."""
    try:
        return unpack(frame, MAX_DOCUMENT_BYTES)
    except Violation as violation:
        raise SecurityError(f"document frame refused: {violation}") from violation


def pack(value: object) -> bytes:
    """Return ``value`` as msgpack; raises TypeError or ValueError if msgpack cannot represent it."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(data: bytes | memoryview, max_bytes: int) -> object:
    """Return the single value in ``data``; raises :class:`Violation` unless ``data`` is one accepted value."""
    if len(data) > max_bytes:
        raise Violation(f"{len(data)} bytes, expected at most {max_bytes}")
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            # Timestamps are an extension type that bypasses ``ext_hook``.
            max_ext_len=0,
            object_pairs_hook=_unique_map,
            ext_hook=_no_extension,
        )
    except ValueError as error:
        raise Violation(f"expected one msgpack value: {type(error).__name__}: {str(error)[:120]}") from error


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


PROTOCOL_VERSION = 1
MAX_HEADER_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True)
class Envelope:
    """The run, epoch and sender of a message; ``seq`` counts from 0 on each connection."""

    run: Annotated[str, Text(64)]
    epoch: Annotated[int, Integer()]
    src: Annotated[str, Text(32)]
    seq: Annotated[int, Integer()]


_ENVELOPE = Record(Envelope)
_RECORDS: Mapping[str, Record[Any]] = {kind: Record(message_type) for kind, message_type in KINDS.items()}


def encode_header(envelope: Envelope, message: Message) -> bytes:
    """Return the header frame; raises ValueError if a field violates the schema or the header is too long."""
    plain = {
        "v": PROTOCOL_VERSION,
        "kind": message.kind,
        **_ENVELOPE.write(envelope, "envelope"),
        **_RECORDS[message.kind].write(message, message.kind),
    }
    header = pack(plain)
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(f"header of {message.kind!r} takes {len(header)} bytes, expected at most {MAX_HEADER_BYTES}")
    return header


def decode_header(header: bytes | memoryview) -> tuple[Envelope, Message]:
    """Return envelope and message of a header frame; raises SecurityError, and no other error, if it is invalid."""
    try:
        plain = unpack(header, MAX_HEADER_BYTES)
        if not isinstance(plain, dict):
            raise Violation(f"{type(plain).__name__} at the top, expected a map")
        version, kind = plain.pop("v", None), plain.pop("kind", None)
        if type(version) is not int or version != PROTOCOL_VERSION:
            raise Violation(
                f"protocol version {printable(repr(version))}, expected {PROTOCOL_VERSION}: use the same version of "
                "runner on all hosts"
            )
        if not isinstance(kind, str) or kind not in KINDS:
            raise Violation(f"kind {printable(repr(kind))}, expected one of {', '.join(KINDS)}")
        envelope = {name: plain.pop(name) for name in _ENVELOPE.fields if name in plain}
        return _ENVELOPE.read(envelope, "envelope"), _RECORDS[kind].read(plain, kind)
    except Violation as violation:
        raise SecurityError(f"message header refused: {violation}") from violation


def check_frames(message: Message, frames: Sequence[memoryview]) -> None:
    """Raise :class:`Violation` unless ``frames`` are a document if the kind has a document, and empty otherwise."""
    nbytes = sum(frame.nbytes for frame in frames)
    if message.has_document and (not frames or nbytes > MAX_DOCUMENT_BYTES):
        raise Violation(
            f"{message.kind}: {len(frames)} frames of {nbytes} bytes, expected a document of at most "
            f"{MAX_DOCUMENT_BYTES} bytes"
        )
    if frames and not message.has_document:
        raise Violation(f"{message.kind}: {len(frames)} frames, expected none")
