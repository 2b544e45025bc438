"""A published dataset of a few bytes, its files in a cache, and archives with these files."""

import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.data.archive import read_tar
from runner.data.dataset import Normalisation
from runner.data.origins import Archive, Origin
from runner.data.published import CachedArray, PublishedDataset, PublishedSettings, encode_idx

_ARRAYS = {
    "train-images": np.random.default_rng(0).integers(0, 256, (5, 2, 3), np.uint8),
    "train-labels": np.array([0, 1, 0, 1, 1], np.uint8),
    "test-images": np.random.default_rng(1).integers(0, 256, (2, 2, 3), np.uint8),
    "test-labels": np.array([1, 0], np.uint8),
}
FILES = {name: encode_idx(array) for name, array in _ARRAYS.items()}
"""The files of TINY, by name."""

TINY = PublishedDataset(
    "tiny",
    tuple(CachedArray(name, each.shape, hashlib.sha256(FILES[name]).hexdigest()) for name, each in _ARRAYS.items()),
    (1, 2, 3),
    ("zero", "one"),
    Normalisation(255.0, (0.5,), (0.25,)),
)
"""Five train and two test images of 2x3 pixels in two classes."""


@dataclass
class Tiny(PublishedSettings):
    """Settings of TINY."""

    name: str = "tiny"
    published = TINY


def store(root: Path) -> Path:
    """Put the files of TINY into the cache ``root``; return the dataset's folder."""
    folder = root / TINY.name
    folder.mkdir(parents=True)
    for filename, data in FILES.items():
        (folder / filename).write_bytes(data)
    return folder


@dataclass(frozen=True)
class Member:
    """One member of a tar file: a file with ``data``, or a member of another ``kind``, such as a link to ``target``."""

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    target: str = ""


MEMBERS = [Member("package/setup.py", b"raise SystemExit"), *(Member(f"package/{n}", d) for n, d in FILES.items())]
"""The members of an archive with the files of TINY and an unwanted file."""


def tar(*members: Member, mode: str = "w:gz") -> bytes:
    """Return the bytes of a tar file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as file:  # type: ignore[call-overload]
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.size, info.type, info.linkname = len(member.data), member.kind, member.target
            file.addfile(info, io.BytesIO(member.data))
    return buffer.getvalue()


def ar(members: Mapping[str, bytes]) -> bytes:
    """Return the bytes of an ar archive in the format of Debian packages. members: name -> data."""
    parts = [b"!<arch>\n"]
    for name, data in members.items():
        parts.append(f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode())
        parts.append(data + b"\n" * (len(data) % 2))
    return b"".join(parts)


def serve(data: bytes, *, size: int | None = None, checksum: str | None = None, place: str = "fake place") -> Origin:
    """Return an origin of TINY that decodes the members ``package/FILENAME`` of its only archive, ``data``.

    size, checksum: the values that the origin states for the archive; None for the true values.
    """
    true_checksum = f"sha256:{hashlib.sha256(data).hexdigest()}"
    filename = f"{place.replace(' ', '-')}.tgz"
    archive = Archive(filename, len(data) if size is None else size, checksum or true_checksum)

    def obtain(wanted: Archive, folder: Path) -> None:
        (folder / wanted.filename).write_bytes(data)

    def decode(paths: Sequence[Path]) -> dict[str, bytes]:
        members = read_tar(paths[0], {f"package/{array.filename}": array.size for array in TINY.arrays})
        return {Path(name).name: content for name, content in members.items()}

    return Origin(place, (archive,), obtain, decode)
