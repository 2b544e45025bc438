"""Read .npz files from untrusted sources: the headers of all arrays, or one array at a time, and never a pickle.

An .npz file is a zip file of .npy files (NumPy enhancement proposal 1); a folder of .npy files is read like one. Shapes
and dtypes are read first. An array is allocated or mapped only if they match the size of the .npy file.
"""

import math
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from runner.errors import DataError
from runner.system.files import open_regular

MOST_ARRAYS = 64
"""Largest accepted number of arrays in a file or folder, so that the headers of all arrays are read quickly."""

_MOST_AXES = 32
_MOST_BYTES = 1 << 63
_ENCRYPTED = 0x1
_LOCAL_HEADER = 30
# The accepted values of dtype.kind: booleans, integers, unsigned integers, floats and text.
_KINDS = "biufU"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
DAMAGE = (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error, TokenError)
"""Errors that NumPy and zipfile raise for a damaged file. MemoryError: a size in a header is wrong. TokenError and
RecursionError, which is a RuntimeError: a header is not a Python literal."""

_REMEDY = "write it again with numpy.savez(FILE, x_train=..., ...)"


@dataclass(frozen=True)
class ArrayHeader:
    """The header of an array. begin: size of the header in bytes; the elements follow it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    begin: int

    @property
    def nbytes(self) -> int:
        """Bytes of the array's elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_headers(path: Path) -> dict[str, ArrayHeader]:
    """Return the header of every array in the file, or in the folder of .npy files, by name.

    Raises DataError if the file is missing, damaged or not an .npz file, if it has more than ``MOST_ARRAYS`` arrays, or
    if an array has elements other than booleans, numbers and text.
    """
    if path.is_dir():
        files = sorted(path.glob("*.npy"))
        if len(files) > MOST_ARRAYS:
            raise DataError(f"{path} has {len(files)} files *.npy; expected at most {MOST_ARRAYS}; remove the others")
        return {file.stem: _file_header(file) for file in files}
    with _opened(path) as archive:
        return {_array_name(member): _header(path, archive, member) for member in _members(path, archive)}


def read_array(path: Path, name: str) -> NDArray[Any]:
    """Return an array in C order. Raises DataError if it is missing, invalid or, in a folder, in Fortran order."""
    if path.is_dir():
        values = np.array(map_array(path, name))
    else:
        with _opened(path) as archive:
            member = _member(path, archive, name)
            _header(path, archive, member)
            # At the end of the member, zipfile verifies its checksum.
            with archive.open(member) as stream:
                values = np.asarray(npy.read_array(stream, allow_pickle=False), order="C")
    if values.dtype.kind == "U":
        _require_text(path, name, values.ravel())
    return values


def map_array(path: Path, name: str) -> NDArray[Any]:
    """Return the array ``name`` mapped into memory, read-only. Only headers are read, and no checksum is verified.

    Raises DataError like :func:`read_array`, or if the array is compressed or not in C order.
    """
    if path.is_dir():
        file, header, begin = path / f"{name}.npy", _file_header(path / f"{name}.npy"), 0
    else:
        file, (header, begin) = path, _place(path, name)
    if header.fortran_order and len(header.shape) > 1:
        raise DataError(f"{path}: array {name!r} is in Fortran order and cannot be mapped; expected C order")
    try:
        return np.memmap(file, header.dtype, "r", begin + header.begin, header.shape)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: array {name!r} cannot be mapped: {error}; {_REMEDY}") from error


def _place(path: Path, name: str) -> tuple[ArrayHeader, int]:
    """Return the header of an array in an .npz file, and the position of its .npy file in the .npz file."""
    with _opened(path) as archive:
        member = _member(path, archive, name)
        if member.compress_type != zipfile.ZIP_STORED:
            advice = "write the file with numpy.savez, or use data.stream=false"
            raise DataError(f"{path}: array {name!r} is compressed and cannot be mapped; {advice}")
        header = _header(path, archive, member)
        with open_regular(path) as file:
            file.seek(member.header_offset)
            local = file.read(_LOCAL_HEADER)
        # The lengths of the name and of the extra field are repeated in front of the member, and can differ there.
        lengths = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        return header, member.header_offset + _LOCAL_HEADER + lengths


def _file_header(path: Path) -> ArrayHeader:
    try:
        with open_regular(path) as file:
            return _checked_header(path, path.stem, file, path.stat().st_size)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; expected a NumPy array") from error
    except DAMAGE as error:
        raise DataError(f"{path} cannot be read as a NumPy array: {error}; write it again with numpy.save") from error


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open the file as a zip archive; turn errors of reading inside the block into a DataError that names the file."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; expected the .npz file that data.path names") from error
    except DAMAGE as error:
        raise DataError(f"{path} cannot be read as an .npz file: {error}; {_REMEDY}") from error


def _members(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    members = archive.infolist()
    names = {member.filename for member in members}
    if len(members) > MOST_ARRAYS or len(names) < len(members):
        expected = f"at most {MOST_ARRAYS} members, all with different names; {_REMEDY}"
        raise DataError(f"{path} has {len(members)} members with {len(names)} names; expected {expected}")
    for member in members:
        plain = member.filename.endswith(".npy") and member.compress_type in _METHODS
        if not plain or member.flag_bits & _ENCRYPTED:
            expected = f"arrays NAME.npy, stored or deflated, and nothing else; {_REMEDY}"
            raise DataError(f"{path} holds {member.filename!r}; expected {expected}")
    return members


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    found = {_array_name(member): member for member in _members(path, archive)}
    if name not in found:
        raise DataError(f"{path} has no array {name!r}; it has: {', '.join(found) or 'none'}")
    return found[name]


def _array_name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _header(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> ArrayHeader:
    with archive.open(member) as stream:
        return _checked_header(path, _array_name(member), cast(BinaryIO, stream), member.file_size)


def _checked_header(path: Path, name: str, stream: BinaryIO, size: int) -> ArrayHeader:
    """Return the header of a .npy file of ``size`` bytes. stream: the file, at its beginning."""
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise DataError(f"{path}: array {name!r} is of format {version}, expected (1, 0) or (2, 0)")
    shape, fortran_order, dtype = _HEADERS[version](stream)
    header = ArrayHeader(shape, dtype, fortran_order, stream.tell())
    if dtype.kind not in _KINDS or dtype.subdtype is not None or not dtype.itemsize:
        advice = "expected numbers or text; convert it with array.astype(...)"
        raise DataError(f"{path}: array {name!r} is of dtype {dtype}; {advice}")
    if not _is_possible(shape, dtype.itemsize):
        expected = f"at most {_MOST_AXES} non-negative dimensions and fewer than 2**63 bytes of data; {_REMEDY}"
        raise DataError(f"{path}: array {name!r} is of shape {shape}; expected {expected}")
    if header.begin + header.nbytes != size:
        fault = f"takes {header.nbytes} bytes after a header of {header.begin} bytes, but the file has {size} bytes"
        raise DataError(f"{path}: array {name!r} of {dtype}{list(shape)} {fault}; {_REMEDY}")
    return header


def _is_possible(shape: tuple[int, ...], itemsize: int) -> bool:
    """Return whether an array can have this shape. A damaged header can hold any sizes, even booleans."""
    sizes = len(shape) <= _MOST_AXES and all(type(size) is int and size >= 0 for size in shape)
    # Even if one size is 0, the product of the other sizes is limited, because NumPy computes that product.
    return sizes and math.prod(size for size in shape if size) * itemsize < _MOST_BYTES


def _require_text(path: Path, name: str, values: NDArray[np.str_]) -> None:
    """Raise DataError for control characters, which can disturb a terminal, and for code points invalid in UTF-8."""
    code_point = np.dtype(np.uint32).newbyteorder(values.dtype.byteorder)
    points = values.view(code_point).reshape(len(values), values.itemsize // code_point.itemsize)
    control = (points > 0) & (points < 0x20) | (points >= 0x7F) & (points < 0xA0)
    # At the end of an entry, zeros are padding. A zero before another character is a control character.
    control[:, :-1] |= (points[:, :-1] == 0) & (points[:, 1:] != 0)
    no_character = (points >= 0xD800) & (points < 0xE000) | (points > sys.maxunicode)
    wrong = np.argwhere(control | no_character)
    if len(wrong):
        entry, place = wrong[0]
        advice = f"expected text without control characters and lone surrogates; {_REMEDY}"
        raise DataError(f"{path}: array {name!r} holds U+{points[entry, place]:04X} in entry {entry}; {advice}")
