"""A published dataset of a few bytes, and ways to serve it."""

import hashlib
import io
import shutil
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from runner.data.archive import read_tar
from runner.data.dataset import Normalisation
from runner.data.origins import Archive, Origin
from runner.data.published import CachedArray, PublishedDataset, encode_idx


@dataclass(frozen=True)
class Tiny:
    """A published dataset and the bytes of its files."""

    published: PublishedDataset
    files: Mapping[str, bytes]

    def store(self, root: Path) -> Path:
        """Put intact files into the cache ``root``; return the dataset's folder."""
        folder = root / self.published.name
        folder.mkdir(parents=True)
        for filename, data in self.files.items():
            (folder / filename).write_bytes(data)
        return folder


@pytest.fixture
def tiny() -> Tiny:
    """Five train and two test images of 2x3 pixels in two classes."""
    rng = np.random.default_rng(0)
    arrays = {
        "train-images": rng.integers(0, 256, (5, 2, 3), np.uint8),
        "train-labels": np.array([0, 1, 0, 1, 1], np.uint8),
        "test-images": rng.integers(0, 256, (2, 2, 3), np.uint8),
        "test-labels": np.array([1, 0], np.uint8),
    }
    files = {name: encode_idx(array) for name, array in arrays.items()}
    cached = [CachedArray(name, array.shape, hashlib.sha256(files[name]).hexdigest()) for name, array in arrays.items()]
    published = PublishedDataset("tiny", (1, 2, 3), ("zero", "one"), Normalisation(255.0, (0.5,), (0.25,)), *cached)
    return Tiny(published, files)


@dataclass(frozen=True)
class Member:
    """One member of a tar file to be made: a file with ``data``, or a link of ``kind`` to ``target``."""

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    target: str = ""


@pytest.fixture
def make_tar() -> Callable[..., bytes]:
    """Return a function (members, mode="w:gz") -> the bytes of a tar file."""

    def make(members: list[Member], mode: str = "w:gz") -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
            for member in members:
                info = tarfile.TarInfo(member.name)
                info.size, info.type, info.linkname = len(member.data), member.kind, member.target
                tar.addfile(info, io.BytesIO(member.data))
        return buffer.getvalue()

    return make


@pytest.fixture
def make_ar() -> Callable[[Mapping[str, bytes]], bytes]:
    """Return a function (name -> data) -> the bytes of an ar archive as Debian writes it."""

    def make(members: Mapping[str, bytes]) -> bytes:
        parts = [b"!<arch>\n"]
        for name, data in members.items():
            parts.append(f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode())
            parts.append(data + b"\n" * (len(data) % 2))
        return b"".join(parts)

    return make


@pytest.fixture
def serve(tmp_path: Path, tiny: Tiny) -> Callable[..., Origin]:
    """Return a function (archive bytes, **facts) -> an Origin of ``tiny`` that gives those bytes.

    The facts default to the true size and checksum of the archive, which holds ``package/FILENAME`` members.
    """

    def make(data: bytes, *, size: int | None = None, checksum: str | None = None, place: str = "fake place") -> Origin:
        shop = tmp_path / "shop"
        shop.mkdir(exist_ok=True)
        archive = Archive(
            f"{place.replace(' ', '-')}.tgz",
            len(data) if size is None else size,
            checksum or f"sha256:{hashlib.sha256(data).hexdigest()}",
        )
        (shop / archive.filename).write_bytes(data)

        def obtain(wanted: Archive, folder: Path) -> None:
            shutil.copy(shop / wanted.filename, folder)

        def decode(paths: Sequence[Path]) -> dict[str, bytes]:
            sizes = {f"package/{array.filename}": array.size for array in tiny.published.arrays}
            members = read_tar(paths[0], sizes)
            return {Path(name).name: content for name, content in members.items()}

        return Origin(place, (archive,), obtain, decode)

    return make


@pytest.fixture
def tiny_members(tiny: Tiny) -> list[Member]:
    """The members of an archive that holds ``tiny``, and an unwanted file."""
    wanted = [Member(f"package/{filename}", data) for filename, data in tiny.files.items()]
    return [Member("package/setup.py", b"raise SystemExit"), *wanted]


@pytest.fixture
def member() -> type[Member]:
    """The class of the members that ``make_tar`` takes."""
    return Member
