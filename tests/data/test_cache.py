"""The cache: loading, and errors of missing or damaged files."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from runner.data.published import Mnist, decode_idx, encode_idx, is_cached, load_published
from runner.errors import DataError


def test_loads_what_was_stored(tmp_path: Path, tiny):
    tiny.store(tmp_path)
    dataset = load_published(tiny.published, str(tmp_path))
    assert dataset.facts == tiny.published.facts
    assert dataset.train.images.shape == (5, 1, 2, 3)
    assert dataset.train.images.tobytes() == tiny.files["train-images"][16:]
    np.testing.assert_array_equal(dataset.train.labels, [0, 1, 0, 1, 1])
    np.testing.assert_array_equal(dataset.test.labels, [1, 0])
    assert dataset.test.labels.dtype == np.int64


def test_missing_dataset_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError) as caught:
        Mnist().load()
    assert str(caught.value) == (
        f"dataset 'mnist' is not in the cache: {tmp_path}/runner/data/mnist is missing; "
        f"get it with: runner data fetch mnist"
    )


def test_the_command_mends_the_folder_that_was_configured(tmp_path: Path):
    with pytest.raises(DataError, match=re.escape(f"runner data fetch mnist --cache-dir {tmp_path}")):
        Mnist(cache_dir=str(tmp_path)).load()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data[:-1],
        lambda data: data + b"\x00",
        lambda _: b"",
    ],
    ids=["one bit", "cut", "longer", "empty"],
)
def test_corrupt_file_is_named_with_both_checksums(tmp_path: Path, tiny, damage):
    path = tiny.store(tmp_path) / "test-images"
    path.write_bytes(damage(tiny.files["test-images"]))
    expected = tiny.published.test_images.sha256
    with pytest.raises(
        DataError,
        match=rf"{path} is corrupt: SHA-256 is [0-9a-f]{{64}}, expected {expected}.*runner data fetch tiny",
    ):
        load_published(tiny.published, str(tmp_path))
    assert not is_cached(tiny.published, tmp_path)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path, tiny):
    path = tiny.store(tmp_path) / "train-labels"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=f"{path} is a FIFO: expected a regular file; get it again with"):
        load_published(tiny.published, str(tmp_path))


def test_missing_file_is_named(tmp_path: Path, tiny):
    path = tiny.store(tmp_path) / "train-labels"
    path.unlink()
    with pytest.raises(DataError, match=f"cannot read {path}: No such file.*runner data fetch tiny"):
        load_published(tiny.published, str(tmp_path))


def test_default_folder_follows_the_base_directory_specification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_root(None) == tmp_path / "cache/runner/data"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_root(None) == tmp_path / "home/.cache/runner/data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root(None) == tmp_path / "home/.cache/runner/data"


FILE = b"\x00\x00\x08\x02" + b"\x00\x00\x00\x02" + b"\x00\x00\x00\x03" + bytes([1, 2, 3, 4, 5, 6])
ARRAY = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)


def test_encode_writes_the_format():
    assert encode_idx(ARRAY) == FILE


def test_encode_follows_the_order_of_the_elements_not_of_memory():
    assert encode_idx(np.asfortranarray(ARRAY)) == FILE


def test_decode_reads_it():
    np.testing.assert_array_equal(decode_idx(FILE, (2, 3)), ARRAY)


@pytest.mark.parametrize(("data", "shape"), [(FILE, (3, 2)), (FILE[:7], (2, 3)), (b"\x00\x00\x0d" + FILE[3:], (2, 3))])
def test_decode_refuses_another_shape_or_type(data: bytes, shape: tuple[int, ...]):
    with pytest.raises(ValueError, match="not an IDX file of bytes of shape"):
        decode_idx(data, shape)


@pytest.mark.parametrize("data", [FILE[:-1], FILE + b"\x00"])
def test_decode_refuses_a_wrong_length(data: bytes):
    with pytest.raises(ValueError, match="reshape"):
        decode_idx(data, (2, 3))
