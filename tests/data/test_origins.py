"""Every way to decode an archive, on small archives laid out like the real ones."""

import gzip
import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from runner.data import DATASETS, origins
from runner.data.origins import ORIGINS, Origin
from runner.data.published import encode_idx
from runner.errors import DataError

BATCHES = 6
PER_BATCH = 7


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (42, 3, 32, 32) and labels (42,) of a CIFAR-10 with seven images in each of its six batches."""
    monkeypatch.setattr(origins, "_CIFAR_BATCH_EXAMPLES", PER_BATCH)
    rng = np.random.default_rng(0)
    count = BATCHES * PER_BATCH
    return rng.integers(0, 256, (count, 3, 32, 32), np.uint8), rng.integers(0, 10, count, np.uint8)


def _expected_cifar_files(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> dict[str, bytes]:
    return {
        "train-images-idx4-ubyte": encode_idx(images[:-PER_BATCH]),
        "train-labels-idx1-ubyte": encode_idx(labels[:-PER_BATCH]),
        "test-images-idx4-ubyte": encode_idx(images[-PER_BATCH:]),
        "test-labels-idx1-ubyte": encode_idx(labels[-PER_BATCH:]),
    }


def paths(origin: Origin, folder: Path) -> list[Path]:
    return [folder / archive.filename for archive in origin.archives]


def _png(pixels: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_cifar_binary_records(tmp_path: Path, cifar, make_tar, member):
    images, labels = cifar
    records = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    members = [
        member(f"cifar-10-batches-bin/{name}.bin", batch.tobytes())
        for name, batch in zip(names, np.split(records, BATCHES), strict=True)
    ]
    _, (web, _) = ORIGINS["cifar10"]
    (tmp_path / web.archives[0].filename).write_bytes(make_tar(members))
    assert web.decode(paths(web, tmp_path)) == _expected_cifar_files(images, labels)


def test_cifar_picture_sheets(tmp_path: Path, cifar, make_tar, member):
    images, labels = cifar
    sheets = images.transpose(0, 2, 3, 1).reshape(BATCHES, PER_BATCH, 1024, 3)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    members = [
        *(member(f"package/{name}.png", _png(sheet)) for name, sheet in zip(names, sheets, strict=True)),
        member("package/train_lables.json", json.dumps(labels[:-PER_BATCH].tolist()).encode()),
        member("package/test_lables.json", json.dumps(labels[-PER_BATCH:].tolist()).encode()),
    ]
    _, (_, package) = ORIGINS["cifar10"]
    (tmp_path / package.archives[0].filename).write_bytes(make_tar(members))
    assert package.decode(paths(package, tmp_path)) == _expected_cifar_files(images, labels)


@pytest.mark.parametrize(
    ("sheet", "message"),
    [
        (
            _png(np.zeros((3, 1024, 3), np.uint8)),
            r"is RGB of \(1024, 3\) pixels, expected RGB of \(1024, 7\)",
        ),
        (_png(np.zeros((7, 1024), np.uint8)), r"is L of \(1024, 7\) pixels, expected RGB"),
        (_png(np.zeros((7, 1024, 3), np.uint8))[:60], "is damaged: "),
        (b"GIF89a", "is damaged: cannot identify"),
    ],
)
@pytest.mark.usefixtures("cifar")
def test_cifar_sheet_that_is_not_one(tmp_path: Path, make_tar, member, sheet: bytes, message: str):
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    members = [
        *(member(f"package/{name}.png", sheet) for name in names),
        member("package/train_lables.json", b"[]"),
        member("package/test_lables.json", b"[]"),
    ]
    _, (_, package) = ORIGINS["cifar10"]
    (tmp_path / package.archives[0].filename).write_bytes(make_tar(members))
    with pytest.raises(DataError, match=f"package/data_batch_1.png {message}"):
        package.decode(paths(package, tmp_path))


def test_gzip_files(tmp_path: Path):
    published, (web, _) = ORIGINS["mnist"]
    for archive in web.archives:
        (tmp_path / archive.filename).write_bytes(gzip.compress(archive.filename.encode(), mtime=0))
    assert web.decode(paths(web, tmp_path)) == {array.filename: f"{array.filename}.gz".encode() for array in published.arrays}


def test_mnist_package(tmp_path: Path, make_tar, member):
    published, (_, package) = ORIGINS["mnist"]
    members = [member(f"package/data/{array.filename}", array.sha256.encode()) for array in published.arrays]
    (tmp_path / package.archives[0].filename).write_bytes(make_tar(members))
    assert package.decode(paths(package, tmp_path)) == {array.filename: array.sha256.encode() for array in published.arrays}


def test_fashion_package(tmp_path: Path, make_tar, make_ar, member):
    published, (_, package) = ORIGINS["fashion_mnist"]
    members = [
        member(f"./usr/share/datasets/fashion-mnist/{array.filename}.gz", gzip.compress(array.sha256.encode(), mtime=0))
        for array in published.arrays
    ]
    deb = make_ar({"debian-binary": b"2.0\n", "control.tar.xz": b"", "data.tar.xz": make_tar(members, "w:xz")})
    (tmp_path / package.archives[0].filename).write_bytes(deb)
    assert package.decode(paths(package, tmp_path)) == {array.filename: array.sha256.encode() for array in published.arrays}


@pytest.mark.parametrize("name", ORIGINS)
def test_the_table_of_origins_is_consistent(name: str, tmp_path: Path):
    published, places = ORIGINS[name]
    assert published.name == name
    settings = DATASETS[name](cache_dir=str(tmp_path))
    assert settings.facts() == published.facts
    for need in (settings.require_present, settings.load):
        with pytest.raises(DataError, match=f"dataset '{name}' is not in the cache: .*: runner data fetch {name} "):
            need()
    for place in places:
        for archive in place.archives:
            algorithm, _, digest = archive.checksum.partition(":")
            assert len(bytes.fromhex(digest)) == hashlib.new(algorithm).digest_size
