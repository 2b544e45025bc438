"""The IDX format of MNIST: two zeros, the type, the rank, big-endian sizes, then the data; here, of bytes."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

_UNSIGNED_BYTE = 8


def header(shape: tuple[int, ...]) -> bytes:
    """Return the bytes that come before the data of a uint8 array of ``shape``."""
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, _UNSIGNED_BYTE, len(shape), *shape)


def encode(array: NDArray[np.uint8]) -> bytes:
    """Return ``array`` as an IDX file."""
    return b"".join((header(array.shape), np.ascontiguousarray(array).data))


def decode(data: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the array of an IDX file that must be of ``shape``: a read-only view of ``data``.

    Raises ValueError if the file says another type or shape, or is not as long as it says.
    """
    expected = header(shape)
    if data[: len(expected)] != expected:
        raise ValueError(f"not an IDX file of bytes of shape {shape}: it begins with {data[: len(expected)].hex()}")
    return np.frombuffer(data, np.uint8, offset=len(expected)).reshape(shape)
