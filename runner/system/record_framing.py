"""The framing of TFRecord files and of TensorBoard's event files.

Source: TensorFlow guide, "TFRecord and tf.train.Example", "TFRecords format details". A record is its length (uint64,
little-endian), the masked CRC-32C of these eight bytes (uint32), the data, and the masked CRC-32C of the data (uint32).
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import google_crc32c

HEADER_BYTES = 12
FOOTER_BYTES = 4
MOST_BYTES = 1 << 30
"""Largest accepted number of data bytes of one record."""

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8


@dataclass(frozen=True)
class Record:
    """A valid record. offset: position, in its file, of the first byte of the record's length."""

    offset: int
    data: bytes


@dataclass(frozen=True)
class Fault:
    """A place where a file does not hold a valid record.

    record: number of records before this one in its file, valid or not. offset: position of the record in bytes.
    reason: the value that was found, and the expected one. lost_bytes: bytes after ``offset`` that cannot be read
    because the length of the record is unknown; 0 if the following record can be read.
    """

    record: int
    offset: int
    reason: str
    lost_bytes: int = 0

    def __str__(self) -> str:
        lost = f"; the {self.lost_bytes:,} bytes from there to the end are lost" if self.lost_bytes else ""
        return f"record {self.record} at offset {self.offset}: {self.reason}{lost}"


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of ``data``, rotated right by 15 bits, plus a constant, modulo 2**32."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    """Return the record that holds ``data``."""
    length = _LENGTH.pack(len(data))
    return b"".join((length, _CRC.pack(masked_crc(length)), data, _CRC.pack(masked_crc(data))))


def has_valid_header(first_bytes: bytes) -> bool:
    """Return whether bytes begin with the length of a record and its checksum."""
    return len(first_bytes) >= HEADER_BYTES and _crc_at(first_bytes, 8) == masked_crc(first_bytes[:8])


def scan(file: BinaryIO, size: int) -> Iterator[Record | Fault]:
    """Yield each record of a file of ``size`` bytes, with all checksums verified, or the fault in its place.

    After a record whose data is damaged, reading continues with the following record. A fault in the length ends the
    iteration. Before memory is allocated for a record, its length is verified by its checksum and compared with the
    rest of the file and with ``MOST_BYTES``. Raises OSError.
    """
    offset = number = 0
    while offset < size:
        header = file.read(HEADER_BYTES)
        if fault := _fault_of_header(header, size - offset):
            yield Fault(number, offset, fault, size - offset)
            return
        (length,) = _LENGTH.unpack_from(header)
        body = file.read(length + FOOTER_BYTES)
        wrong = _fault_of_body(body, length)
        yield Fault(number, offset, wrong) if wrong else Record(offset, body[:length])
        offset += HEADER_BYTES + length + FOOTER_BYTES
        number += 1


def read_record(descriptor: int, offset: int, length: int) -> bytes:
    """Return the data of the record of ``length`` data bytes at ``offset``, with its checksums verified.

    The position of the file descriptor is neither used nor changed, so threads can share the descriptor. Raises
    ValueError, with the reason, if no valid record of this length is there, and OSError if reading fails.
    """
    whole = os.pread(descriptor, HEADER_BYTES + length + FOOTER_BYTES, offset)
    header, body = whole[:HEADER_BYTES], whole[HEADER_BYTES:]
    if reason := _fault_of_header(header, len(whole)):
        raise ValueError(reason)
    if _LENGTH.unpack_from(header)[0] != length:
        raise ValueError(f"the record has {_LENGTH.unpack_from(header)[0]} bytes; expected {length}, as in the index")
    if reason := _fault_of_body(body, length):
        raise ValueError(reason)
    return body[:length]


def _fault_of_header(header: bytes, left: int) -> str:
    """Return the fault of the header of a record; "" if it is valid. left: bytes from the header to the end of file."""
    if len(header) < HEADER_BYTES:
        return f"the file ends after {len(header)} of {HEADER_BYTES} header bytes"
    if not has_valid_header(header):
        return f"the checksum of the length is {_crc_at(header, 8):#010x}, expected {masked_crc(header[:8]):#010x}"
    (length,) = _LENGTH.unpack_from(header)
    if length > MOST_BYTES:
        return f"the record has {length} bytes, expected at most {MOST_BYTES}"
    if length + HEADER_BYTES + FOOTER_BYTES > left:
        expected = f"{length} bytes of data and {FOOTER_BYTES} of their checksum"
        return f"the file ends {left - HEADER_BYTES} bytes after the header; expected {expected}"
    return ""


def _fault_of_body(body: bytes, length: int) -> str:
    if len(body) < length + FOOTER_BYTES:
        return f"the file ends after {len(body)} of {length + FOOTER_BYTES} bytes"
    found, expected = _crc_at(body, length), masked_crc(body[:length])
    return f"the checksum of the data is {found:#010x}, expected {expected:#010x}" if found != expected else ""


def _crc_at(data: bytes, place: int) -> int:
    (crc,) = _CRC.unpack_from(data, place)
    return int(crc)
