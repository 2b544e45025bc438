"""TFRecord files: framing, examples and the index, against files and a library of TensorFlow, and with broken files."""

import contextlib
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.data.records import index as records_index
from runner.data.records.example import decode, encode
from runner.data.records.index import ShardIndex, index_of
from runner.data.records.shards import shard_name, shard_paths
from runner.errors import DataError
from runner.system import record_framing
from runner.system.record_framing import Fault, Record, framed, masked_crc, scan

FIXTURES = Path(__file__).parent / "fixtures"
"""Written by TensorFlow 2.21: three examples, without compression, with GZIP and with ZLIB."""

LABEL = "image/class/label"


def index(path: Path, cache: Path, label: str = LABEL) -> ShardIndex:
    records_index._index.cache_clear()
    return index_of(path, label, cache)


def contents(found: ShardIndex) -> list[bytes]:
    with found.opened() as file:
        return [found.read(file, number) for number in range(len(found))]


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow.gzip", "tensorflow.zlib"])
def test_files_of_tensorflow_are_read(name: str, tmp_path: Path) -> None:
    found = index(FIXTURES / f"{name}.tfrecord", tmp_path)
    assert (found.labels.tolist(), found.faults) == ([0, 1, 2], ())
    example = decode(contents(found)[2])
    assert example["image/encoded"] == [b"\x02" * 5]
    assert example["names"] == [b"a", b"", "é".encode()]
    np.testing.assert_array_equal(example["floats"], np.float32([0.5, -1.25, 2]), strict=True)
    np.testing.assert_array_equal(example["signed"], [-1, 2**62, -(2**63)])
    assert example["none"] == []


def test_written_bytes_equal_those_of_tensorflow(tmp_path: Path) -> None:
    plain = (FIXTURES / "tensorflow.tfrecord").read_bytes()
    records = contents(index(FIXTURES / "tensorflow.tfrecord", tmp_path))
    assert b"".join(map(framed, records)) == plain
    features = decode(records[1])
    del features["none"]  # an empty Feature has no type, unlike a list of bytes
    assert decode(encode(features)).keys() == features.keys()
    again = decode(encode(features), ("signed", "floats"))
    np.testing.assert_array_equal(again["signed"], features["signed"], strict=True)
    np.testing.assert_array_equal(again["floats"], features["floats"], strict=True)


def test_tensorflow_reads_written_files(tmp_path: Path) -> None:
    tensorflow = pytest.importorskip("tensorflow")
    features = {"x": [b"\x00\xff"], "y": np.array([7, -7]), "z": np.array([0.1], np.float32)}
    (tmp_path / "ours").write_bytes(framed(encode(features)) + framed(b""))
    first, second = tensorflow.data.TFRecordDataset(str(tmp_path / "ours")).as_numpy_iterator()
    read = tensorflow.train.Example.FromString(first).features.feature
    assert (second, list(read["x"].bytes_list.value), list(read["y"].int64_list.value)) == (b"", [b"\x00\xff"], [7, -7])
    assert list(read["z"].float_list.value) == [np.float32(0.1)]


NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1)).map(lambda values: np.array(values, np.int64))
FLOATS = st.lists(st.floats(width=32, allow_nan=False)).map(lambda values: np.array(values, np.float32))


@given(st.dictionaries(st.text(), st.lists(st.binary()) | NUMBERS | FLOATS))
def test_any_features_are_restored(features: dict) -> None:
    found = decode(encode(features))
    assert found.keys() == features.keys()
    for name, value in features.items():
        if len(value):
            np.testing.assert_array_equal(found[name], value)
        assert len(found[name]) == len(value)


@given(st.binary(max_size=40))
def test_any_bytes_are_an_example_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode(data)


def test_unpacked_numbers_are_read() -> None:
    # Two fields with number 1, of wire types 0 and 5, as for lists that are not packed.
    integers = bytes([0x0A, 14, 0x0A, 12, 0x0A, 1, ord("n"), 0x12, 7, 0x1A, 5, 0x08, 5, 0x08, 0x96, 0x01])
    np.testing.assert_array_equal(decode(integers)["n"], [5, 150])
    floats = bytes([0x0A, 14, 0x0A, 12, 0x0A, 1, ord("f"), 0x12, 7, 0x12, 5, 0x0D, *struct.pack("<f", 1.5)])
    np.testing.assert_array_equal(decode(floats)["f"], np.float32([1.5]))


def example(label: int) -> bytes:
    return encode({LABEL: np.array([label]), "image/encoded": [bytes(range(label, label + 20))]})


def three(tmp_path: Path) -> Path:
    path = tmp_path / "train"
    path.write_bytes(b"".join(framed(example(label)) for label in range(3)))
    return path


SIZE = len(framed(example(0)))


def test_a_file_cut_at_any_byte_reports_the_cut_record(tmp_path: Path) -> None:
    whole = three(tmp_path).read_bytes()
    path = tmp_path / "cut"
    for size in range(SIZE, 3 * SIZE):
        path.write_bytes(whole[:size])
        with path.open("rb") as file:
            *records, last = scan(file, size)
        kept, rest = divmod(size, SIZE)
        assert [record.offset for record in records] == [SIZE * k for k in range(kept if rest else kept - 1)]
        if not rest:
            assert isinstance(last, Record)
            continue
        assert isinstance(last, Fault)
        assert (last.record, last.offset, last.lost_bytes) == (kept, kept * SIZE, rest)
        assert "the file ends" in last.reason


def test_any_changed_bit_is_found(tmp_path: Path) -> None:
    whole = three(tmp_path).read_bytes()
    path = tmp_path / "changed"
    for place in range(SIZE, 2 * SIZE):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with path.open("rb") as file:
            found = list(scan(file, len(changed)))
        assert isinstance(found[0], Record)
        assert isinstance(found[1], Fault)
        assert (found[1].record, found[1].offset) == (1, SIZE)
        assert "the checksum of the" in found[1].reason
        # Only a damaged length hides the following record.
        assert len(found) == (2 if place < SIZE + 12 else 3)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**31, 100])
def test_a_wrong_length_with_a_right_checksum_allocates_nothing(length: int, tmp_path: Path) -> None:
    header = struct.pack("<Q", length)
    path = tmp_path / "long"
    path.write_bytes(header + struct.pack("<I", masked_crc(header)) + bytes(16))
    (fault,) = index(path, tmp_path).faults
    ending = f"the file ends 16 bytes after the header; expected {length} bytes of data and 4 of their checksum"
    assert length > record_framing.MOST_BYTES or fault.reason.endswith(ending)
    assert str(length) in fault.reason
    assert fault.lost_bytes == 28


def test_records_above_the_limit_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_framing, "MOST_BYTES", 10)
    (fault,) = index(three(tmp_path), tmp_path).faults
    assert f"the record has {SIZE - 16} bytes, expected at most 10" in str(fault)


def test_records_without_a_label_are_faults(tmp_path: Path) -> None:
    path = tmp_path / "odd"
    wrong = [{LABEL: np.array([-1])}, {LABEL: np.array([1, 2])}, {LABEL: [b"1"]}, {"y": np.array([1])}]
    path.write_bytes(b"".join([*(framed(encode(each)) for each in wrong), framed(b"\x0b"), framed(example(9))]))
    found = index(path, tmp_path)
    assert found.labels.tolist() == [9]
    assert [fault.record for fault in found.faults] == [0, 1, 2, 3, 4]
    assert found.faults[4].reason.startswith("not a tf.train.Example: ")
    assert len(index(path, tmp_path, label="")) == 5


def test_the_index_is_stored_and_made_again_after_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = three(tmp_path), tmp_path / "cache"
    built: list[Path] = []
    original = records_index._built
    monkeypatch.setattr(records_index, "_built", lambda path, *rest: built.append(path) or original(path, *rest))
    first = index(path, cache)
    assert contents(index(path, cache)) == contents(first)
    assert len(built) == 1
    (stored,) = cache.glob("*.index")
    raw = stored.read_bytes()
    stored.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    index(path, cache)
    assert len(built) == 2
    stored.unlink()
    os.mkfifo(stored)
    index(path, cache)
    assert len(built) == 3
    path.write_bytes(path.read_bytes() + framed(example(3)))
    assert len(index(path, cache)) == 4
    assert len(built) == 4
    with pytest.raises(DataError, match=r"train changed after its index was built: it had \d+ bytes and has \d+"):
        first.opened()


def test_a_record_that_changes_after_indexing_is_named(tmp_path: Path) -> None:
    found = index(three(tmp_path), tmp_path)
    with found.opened() as file, (tmp_path / "train").open("r+b") as changed:
        changed.seek(SIZE + 20)
        changed.write(b"?")
        changed.flush()
        with pytest.raises(DataError, match=rf"train: record 1 at offset {SIZE}: the checksum of the data is 0x"):
            found.read(file, 1)


@pytest.mark.parametrize("name", ["tensorflow.gzip", "tensorflow.zlib"])
def test_a_cut_or_damaged_compressed_file_is_refused(name: str, tmp_path: Path) -> None:
    whole = (FIXTURES / f"{name}.tfrecord").read_bytes()
    path = tmp_path / "compressed"
    for damaged in (whole[:-20], whole[:40] + b"????" + whole[44:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"compressed (is cut|cannot be expanded)"):
            index(path, tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_shards_are_found_by_pattern_and_none_may_be_missing(tmp_path: Path) -> None:
    names = [shard_name("train", number, 3) for number in range(3)]
    for name in names:
        (tmp_path / name).touch()
    for pattern in ("train-*", "train@3", "train-0000?-of-00003"):
        assert [path.name for path in shard_paths(tmp_path, pattern)] == names
    (tmp_path / names[1]).unlink()
    for pattern in ("train-*", "train@3"):
        with pytest.raises(DataError, match=r"train-00001-of-00003 is missing: 1 of 3 shards are missing"):
            shard_paths(tmp_path, pattern)
    for pattern, message in {
        "test-*": "has no file test-*: expected shards of records",
        "train@0": "the pattern names 0 shards",
        "": "'' is no pattern below data.path",
        "../train-*": "expected a pattern of files below data.path",
        "../train@3": "expected a pattern of files below data.path",
        f"{tmp_path}/train@3": "expected a pattern of files below data.path",
    }.items():
        with pytest.raises(DataError, match=re.escape(message)):
            shard_paths(tmp_path, pattern)
