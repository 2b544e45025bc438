"""Reading .npz files: what NumPy writes comes back, and nothing that only looks like it."""

from __future__ import annotations

import io
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
def test_what_numpy_writes_comes_back(tmp_path: Path, save) -> None:
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
    """A .npy file whose header says ``shape``, whatever follows."""
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + payload


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (member((2**40,)), "takes 4398046511104 bytes behind its header"),
        (member((2,), payload=b"\0" * 9), "takes 8 bytes behind its header of 128, but the file holds 137 for both"),
        (member((2,), "|O"), "'a' is of dtype object; expected numbers or text"),
        (member((2**50,), "<U0"), "expected numbers or text"),
        (member((2,), [("x", "<f4")]), "expected numbers or text"),
        (b"\x80\x04N.", "cannot be read as an .npz file"),
        (b"\x93NUMPY\x09\x00" + b"\0" * 100, r"format \(9, 0\)"),
    ],
)
def test_a_member_that_is_no_plain_array_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = archive(tmp_path / "file.npz", a=content)
    with pytest.raises(DataError, match=complaint) as caught:
        read_headers(path)
    assert str(path) in str(caught.value)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="is of dtype object"):
        read_array(path, "x")


def test_other_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("notes.txt", "hello")
    with pytest.raises(DataError, match=r"holds 'notes\.txt'; expected arrays NAME\.npy"):
        read_headers(path)
    archive(path, **{f"a{i}": member((0,)) for i in range(MOST_ARRAYS + 1)})
    with pytest.raises(DataError, match="has 65 members of 65 names; expected at most 64"):
        read_headers(path)


def test_damage_is_found(tmp_path: Path) -> None:
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


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.npz: no such file"):
        read_headers(tmp_path / "none.npz")
    np.savez(tmp_path / "file.npz", x=np.arange(3))
    with pytest.raises(DataError, match="has no array 'y'; it has: x"):
        read_array(tmp_path / "file.npz", "y")
