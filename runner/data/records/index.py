"""The index of a TFRecord file: offset, length and label of every record, built once and cached.

With the index, records can be read in any order, so a batch stays a pure function of seed and step. The first pass over
a file verifies the checksums of all records and finds all faults. A compressed file is first expanded into the cache,
because compressed records can be read only in order.
"""

import hashlib
import json
import logging
import os
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from runner.data.records.example import decode
from runner.errors import DataError
from runner.system.files import open_regular, writing
from runner.system.record_framing import HEADER_BYTES, Fault, Record, has_valid_header, read_record, scan

log = logging.getLogger(__name__)

MOST_EXPANDED = 1 << 40
"""Largest accepted size, in bytes, of a compressed file after expansion."""

_VERSION = 1
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_ANY_HEADER = zlib.MAX_WBITS | 32
"""The window size with which zlib accepts the headers of GZIP and ZLIB."""


class FileState(NamedTuple):
    """Facts that identify the content of a file without reading it. mtime_ns: time of the last change, in ns."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class ShardIndex:
    """The valid records of one file, in the order of the file.

    path: the file to read; for a compressed file, its expanded copy. offsets, lengths: (N,) int64, position and number
    of data bytes of each record. labels: (N,) int64; 0 for none. faults: the invalid records.
    """

    path: Path
    state: FileState
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    labels: NDArray[np.int64]
    faults: tuple[Fault, ...]

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, file: BinaryIO, number: int) -> bytes:
        """Return the data of record ``number`` of the opened file ``path``.

        Raises DataError, naming file, offset and record, if the record changed since the index was built.
        """
        offset, length = int(self.offsets[number]), int(self.lengths[number])
        try:
            return read_record(file.fileno(), offset, length)
        except (ValueError, OSError) as error:
            advice = "the file was valid when it was indexed: restore it, or start again to index it again"
            raise DataError(f"{self.path}: record {number} at offset {offset}: {error}; {advice}") from error

    def opened(self) -> BinaryIO:
        """Open the file for reading. Raises DataError if it is missing or changed since the index was built."""
        try:
            file = open_regular(self.path)
        except OSError as error:
            raise DataError(f"{self.path} cannot be opened: {error.strerror}; restore it") from error
        if (now := _state_of(self.path, file)) != self.state:
            file.close()
            fault = f"it had {self.state.size} bytes and has {now.size}"
            advice = "do not change the records of a run, and start again"
            raise DataError(f"{self.path} changed after its index was built: {fault}; {advice}")
        return file


def index_of(path: Path, label: str, cache: Path) -> ShardIndex:
    """Return the index of a file from the folder ``cache``, where it is stored after the first pass over the file.

    label: name of the feature with the label, an integer of 0 or more; "" for none. A record without such an integer is
    a fault. Raises DataError if the file cannot be read, ResourceError if the cache cannot be written.
    """
    try:
        with open_regular(path) as file:
            return _index(_state_of(path, file), label, cache)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


@lru_cache(maxsize=4096)
def _index(state: FileState, label: str, cache: Path) -> ShardIndex:
    key = hashlib.sha256(json.dumps([_VERSION, state.path, label]).encode()).hexdigest()[:32]
    stored = cache / f"{key}.index"
    if (found := _cached(stored, state)) is not None:
        return found
    path, expanded = Path(state.path), state
    with open_regular(path) as file:
        compressed = _is_compressed(file.read(HEADER_BYTES))
    if compressed:
        path = cache / f"{key}.records"
        log.info("%s is compressed: expanding it into %s", state.path, path)
        _write(path, lambda out: _expand(Path(state.path), out))
        with open_regular(path) as file:
            expanded = _state_of(path, file)
    index = _built(path, expanded, label)
    _write(stored, lambda out: out.write(_packed(index, state)))
    return index


def _built(path: Path, state: FileState, label: str) -> ShardIndex:
    rows: list[tuple[int, int, int]] = []
    faults: list[Fault] = []
    log.info("indexing %s (%.0f MB)", path, state.size / 1e6)
    with open_regular(path) as file:
        for number, found in enumerate(scan(file, state.size)):
            checked = _labelled(found, number, label) if isinstance(found, Record) else found
            if isinstance(checked, Fault):
                faults.append(checked)
            else:
                rows.append(checked)
    offsets, lengths, labels = np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, 3).T)
    return ShardIndex(path, state, offsets, lengths, labels, tuple(faults))


def _labelled(record: Record, number: int, label: str) -> tuple[int, int, int] | Fault:
    """Return offset, length and label of a record, or the reason why its example cannot be used."""
    try:
        found = decode(record.data, (label,))
    except ValueError as error:
        return Fault(number, record.offset, f"not a tf.train.Example: {error}")
    if not label:
        return record.offset, len(record.data), 0
    value = found.get(label)
    if not isinstance(value, np.ndarray) or value.dtype != np.int64 or len(value) != 1 or value[0] < 0:
        return Fault(number, record.offset, f"feature {label} is {value}; expected one integer of 0 or more")
    return record.offset, len(record.data), int(value[0])


def _is_compressed(first_bytes: bytes) -> bool:
    """Return whether a file begins with the bytes of GZIP or ZLIB data (RFC 1950, 1952), and not with a record."""
    if has_valid_header(first_bytes) or len(first_bytes) < 2:
        return False
    is_zlib = first_bytes[0] & 0x0F == 8 and int.from_bytes(first_bytes[:2], "big") % 31 == 0
    return first_bytes[:2] == _GZIP or is_zlib


def _expand(path: Path, out: BinaryIO) -> None:
    """Write the expanded content of the compressed file ``path`` to ``out``. The file may have several GZIP members."""
    engine, written = zlib.decompressobj(_ANY_HEADER), 0
    try:
        with open_regular(path) as file:
            while data := engine.unconsumed_tail or engine.unused_data or file.read(_CHUNK):
                if engine.eof:
                    engine = zlib.decompressobj(_ANY_HEADER)
                written += out.write(engine.decompress(data, _CHUNK))
                if written > MOST_EXPANDED:
                    raise DataError(f"{path} expands to more than {MOST_EXPANDED} bytes, the limit; write more shards")
    except zlib.error as error:
        raise DataError(f"{path} cannot be expanded after {written} bytes: {error}; write it again") from error
    if not engine.eof:
        raise DataError(
            f"{path} is cut off: the compressed data ends early, after {written} expanded bytes; write it again"
        )


def _packed(index: ShardIndex, source: FileState) -> bytes:
    about = {
        "source": list(source),
        "path": str(index.path),
        "state": list(index.state),
        "faults": [asdict(fault) for fault in index.faults],
    }
    arrays = {"offsets": index.offsets, "lengths": index.lengths, "labels": index.labels}
    packed: bytes = save(arrays, {"index": json.dumps(about)})
    return packed + hashlib.sha256(packed).digest()


def _cached(path: Path, source: FileState) -> ShardIndex | None:
    """Return the index in a cache file if it is intact and belongs to this state of the source, else None."""
    try:
        with open_regular(path) as file:
            raw = file.read()
        packed, digest = raw[:-32], raw[-32:]
        if hashlib.sha256(packed).digest() != digest:
            raise ValueError("its SHA-256 is wrong")
        arrays = load(packed)
        header = json.loads(packed[8 : 8 + int.from_bytes(packed[:8], "little")])
        about = json.loads(header["__metadata__"]["index"])
        if about["source"] != list(source):
            return None
        faults = tuple(Fault(**fault) for fault in about["faults"])
        path_read, state = Path(about["path"]), FileState(*about["state"])
        index = ShardIndex(path_read, state, arrays["offsets"], arrays["lengths"], arrays["labels"], faults)
        with open_regular(index.path) as file:
            return index if _state_of(index.path, file) == index.state else None
    except FileNotFoundError:
        return None
    except (SafetensorError, DataError, OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be used (%s): indexing %s again", path, error, source.path)
        return None


def _write(path: Path, content: Callable[[BinaryIO], object]) -> None:
    """Replace a cache file atomically, so that several processes can write it concurrently. Raises ResourceError."""
    with writing(f"the index of records {path}", "set data.cache_dir to a writable folder with free space"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            try:
                content(file)  # type: ignore[arg-type]
                file.flush()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise


def _state_of(path: Path, file: BinaryIO) -> FileState:
    status = os.fstat(file.fileno())
    return FileState(str(path), status.st_size, status.st_mtime_ns)
