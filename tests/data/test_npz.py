"""Reading .npz files: arrays that NumPy wrote are read, and all other contents are refused."""

import io
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy

from runner.data.npz import MOST_ARRAYS, read_array, read_headers
from runner.errors import DataError

ARRAYS = {
    "bytes": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "floats": np.linspace(0, 1, 7, dtype=np.float32),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "text": np.array(["one", "three"]),
    "empty": np.zeros((0, 5), np.int64),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_written_by_numpy_are_read(tmp_path: Path, save) -> None:
    path = tmp_path / "file.npz"
    save(path, **ARRAYS)
    headers = read_headers(path)
    assert list(headers) == list(ARRAYS)
    for name, expected in ARRAYS.items():
        assert (headers[name].shape, headers[name].dtype) == (expected.shape, expected.dtype)
        found = read_array(path, name)
        np.testing.assert_array_equal(found, expected, strict=True)
        assert found.flags.c_contiguous


def member(shape: tuple[int, ...], descr: object = "<f4", payload: bytes = b"") -> bytes:
    """Return the bytes of a .npy file with this header and this payload, which can contradict each other."""
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + payload


def header(text: str) -> bytes:
    """Return the beginning of a .npy file with ``text`` as its header."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (member((2**40,)), "takes 4398046511104 bytes after a header"),
        (member((2,), payload=b"\0" * 9), "takes 8 bytes after a header of 128 bytes, but the file has 137 bytes"),
        (member((2,), "|O"), "'a' is of dtype object; expected numbers or text"),
        (member((2**50,), "<U0"), "expected numbers or text"),
        (member((2,), [("x", "<f4")]), "expected numbers or text"),
        (member((-2, -2), payload=b"\0" * 16), r"is of shape \(-2, -2\); expected at most 32 non-negative dimensions"),
        (member((True, 4), payload=b"\0" * 16), r"is of shape \(True, 4\)"),
        (member((0, 10**23)), r"is of shape \(0, 1000.*fewer than 2\*\*63 bytes of data"),
        (member((0, 2**40, 2**40)), r"is of shape \(0, "),
        (member((1,) * 33, payload=b"\0" * 4), r"is of shape \(1, "),
        (b"\x80\x04N.", "cannot be read as an .npz file"),
        (b"\x93NUMPY\x09\x00" + b"\0" * 100, r"format \(9, 0\)"),
        (header("[" * 5000), "cannot be read as an .npz file"),
        (header("-" * 5000 + "1"), "cannot be read as an .npz file"),
    ],
)
def test_a_member_that_is_not_a_plain_array_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = archive(tmp_path / "file.npz", a=content)
    for read in (read_headers, lambda path: read_array(path, "a")):
        with pytest.raises(DataError, match=complaint) as caught:
            read(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "point"),
    [("a\x1b[2J", "001B"), ("a\nb", "000A"), ("\x9b", "009B"), ("a\0b", "0000"), ("\ud800", "D800")],
)
@pytest.mark.parametrize("order", "<>")
def test_control_characters_are_refused(tmp_path: Path, text: str, point: str, order: str) -> None:
    names = np.array(["schön", text], f"{order}U5")
    np.savez(tmp_path / "file.npz", names=names)
    with pytest.raises(DataError, match=f"'names' holds U.{point} in entry 1; expected text without control"):
        read_array(tmp_path / "file.npz", "names")
    path = archive(tmp_path / "file.npz", names=member((1,), f"{order}U1", np.array(0x110000, f"{order}u4").tobytes()))
    with pytest.raises(DataError, match=r"holds U\+110000 in entry 0"):
        read_array(path, "names")


@pytest.mark.parametrize("names", [np.array(["schön", "日本", ""]), np.array(["ab", "c"], ">U7"), np.zeros(0, "U3")])
def test_text_of_any_language_is_read(tmp_path: Path, names: np.ndarray) -> None:
    np.savez(tmp_path / "file.npz", names=names)
    np.testing.assert_array_equal(read_array(tmp_path / "file.npz", "names"), names, strict=True)


def test_members_that_are_not_arrays_and_too_many_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("notes.txt", "hello")
    with pytest.raises(DataError, match=r"holds 'notes\.txt'; expected arrays NAME\.npy"):
        read_headers(path)
    archive(path, **{f"a{i}": member((0,)) for i in range(MOST_ARRAYS + 1)})
    with pytest.raises(DataError, match="has 65 members with 65 names; expected at most 64"):
        read_headers(path)
    for number in range(MOST_ARRAYS + 1):
        np.save(tmp_path / f"a{number}.npy", np.zeros(1))
    with pytest.raises(DataError, match=r"has 65 files \*\.npy; expected at most 64; remove the others"):
        read_headers(tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    np.savez(path, x=np.arange(1000))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"cannot be read as an \.npz file: Bad CRC-32"):
        read_array(path, "x")
    path.write_bytes(raw[:100])
    with pytest.raises(DataError, match="File is not a zip file"):
        read_headers(path)


def test_missing_files_and_arrays_are_named_and_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(DataError, match=r"pipe\.npz is a FIFO: expected a regular file"):
        read_headers(tmp_path / "pipe.npz")
    with pytest.raises(DataError, match=r"none\.npz: no such file"):
        read_headers(tmp_path / "none.npz")
    np.savez(tmp_path / "file.npz", x=np.arange(3))
    with pytest.raises(DataError, match="has no array 'y'; it has: x"):
        read_array(tmp_path / "file.npz", "y")
