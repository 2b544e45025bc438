"""``tf.train.Example`` messages in the wire format of protocol buffers (Protocol Buffers documentation, "Encoding").

The messages are those of TensorFlow's example.proto and feature.proto: an Example has field 1, Features; Features has
field 1, a map from names to Feature; a Feature has one of the fields 1 (bytes_list), 2 (float_list) and 3
(int64_list); each list has a repeated field 1. Numbers are read packed and unpacked; they are written packed. Unknown
fields are skipped.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Value: TypeAlias = list[bytes] | NDArray[Any]
"""A feature: a list of byte strings, or an array of float32 or int64."""

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
_MOST_VARINT_BYTES = 10
_FLOAT = np.dtype("<f4")

_Message = tuple[int, int, int | memoryview]
"""A field of a message: its number, its wire type, and its value; a view for delimited and fixed-size values."""


def decode(data: bytes, wanted: Collection[str] | None = None) -> dict[str, Value]:
    """Return the features of a serialized Example by name. wanted: the names to return; None for all.

    If a name occurs twice, the last entry counts. Raises ValueError, with the place in bytes, for invalid data.
    """
    found: dict[str, Value] = {}
    for features in _delimited(memoryview(data), 1):
        for entry in _delimited(features, 1):
            parts = {1: memoryview(b""), 2: memoryview(b"")}
            parts |= {number: value for number, _, value in _fields(entry) if isinstance(value, memoryview)}
            name = bytes(parts[1]).decode()
            if wanted is None or name in wanted:
                found[name] = _feature(parts[2])
    return found


def encode(features: Mapping[str, Value]) -> bytes:
    """Return the Example with these features, in the order of their names, so that equal features give equal bytes."""
    entries = []
    for name, value in sorted(features.items()):
        entry = _field(1, name.encode()) + _field(2, _encoded(value))
        entries.append(_field(1, entry))
    return _field(1, b"".join(entries))


def _encoded(value: Value) -> bytes:
    if isinstance(value, list):
        return _field(_BYTES, b"".join(_field(1, each) for each in value))
    if value.dtype.kind == "f":
        return _field(_FLOATS, _field(1, value.astype(_FLOAT).tobytes()))
    return _field(_INTEGERS, _field(1, b"".join(_varint(int(each) & 0xFFFF_FFFF_FFFF_FFFF) for each in value.ravel())))


def _feature(data: memoryview) -> Value:
    """Return the value of a Feature; an empty Feature is an empty list of byte strings."""
    value: Value = []
    for number, _, content in _fields(data):
        if not isinstance(content, memoryview):
            continue
        if number == _BYTES:
            value = [bytes(each) for each in _delimited(content, 1)]
        elif number == _FLOATS:
            value = _floats(content)
        elif number == _INTEGERS:
            value = _integers(content)
    return value


def _floats(data: memoryview) -> NDArray[np.float32]:
    packed = [value for number, _, value in _fields(data) if number == 1 and isinstance(value, memoryview)]
    joined = b"".join(packed)
    if len(joined) % _FLOAT.itemsize:
        raise ValueError(f"a list of floats has {len(joined)} bytes, expected a multiple of {_FLOAT.itemsize}")
    return np.frombuffer(joined, _FLOAT)


def _integers(data: memoryview) -> NDArray[np.int64]:
    numbers: list[int] = []
    for number, _, value in _fields(data):
        if number == 1:
            numbers += [value] if isinstance(value, int) else _varints(value)
    return np.array(numbers, np.uint64).astype(np.int64)


def _varints(data: memoryview) -> Iterator[int]:
    place = 0
    while place < len(data):
        value, place = _read_varint(data, place)
        yield value


def _delimited(data: memoryview, wanted: int) -> Iterator[memoryview]:
    for number, kind, value in _fields(data):
        if number == wanted and isinstance(value, memoryview) and kind == _DELIMITED:
            yield value


def _fields(data: memoryview) -> Iterator[_Message]:
    """Yield the fields of a message in order. Raises ValueError if it is cut or has an unknown wire type."""
    place = 0
    while place < len(data):
        begin = place
        key, place = _read_varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            number_value, place = _read_varint(data, place)
            yield number, kind, number_value
            continue
        if kind == _DELIMITED:
            size, place = _read_varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"byte {begin} of a message begins a field of wire type {kind}, expected 0, 1, 2 or 5")
        if size > len(data) - place:
            raise ValueError(f"field {number} at byte {begin} has {size} bytes, but {len(data) - place} are left")
        yield number, kind, data[place : place + size]
        place += size


def _read_varint(data: memoryview, place: int) -> tuple[int, int]:
    """Return the unsigned 64-bit number at ``place`` and the place after it."""
    value = 0
    for shift in range(_MOST_VARINT_BYTES):
        if place >= len(data):
            raise ValueError(f"a number is cut at byte {place}")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place
    raise ValueError(f"a number before byte {place} has more than {_MOST_VARINT_BYTES} bytes")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _DELIMITED) + _varint(len(content)) + content
