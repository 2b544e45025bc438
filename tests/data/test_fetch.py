"""Fetching datasets from archives that the tests create, and reading untrusted archives. No network is used."""

import gzip
import io
import os
import tarfile
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.commands.data import main
from runner.data import DATASETS, archive
from runner.data.archive import download, download_package, gunzip, read_ar_member, read_tar
from runner.data.fetch import fetch, fetch_published
from runner.data.origins import ORIGINS, Origin
from runner.errors import ConfigError, DataError, ResourceError, SecurityError
from tests.data.published_data import FILES, MEMBERS, TINY, Member, Tiny, ar, serve, store, tar

ARCHIVE = tar(*MEMBERS)
LENGTH, LABEL_BYTES = len(ARCHIVE), TINY.arrays[3].size


def fetched(root: Path, *origins: Origin) -> tuple[Path, list[str]]:
    """Fetch TINY; return its folder and the reported lines."""
    said: list[str] = []
    return fetch_published(TINY, origins, root, said.append), said


def test_only_the_wanted_files_are_stored_and_they_load(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    folder, _ = fetched(root, serve(ARCHIVE))
    assert folder == root / "tiny"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert [path.name for path in root.iterdir()] == ["tiny"], "a scratch folder was left behind"
    assert len(Tiny(cache_dir=str(root)).load().train) == 5


def test_a_complete_cache_is_not_changed_and_a_corrupt_one_is_replaced(tmp_path: Path) -> None:
    folder = store(tmp_path)
    assert fetched(tmp_path) == (folder, [f"tiny: already in {folder}"])
    (folder / "train-images").write_bytes(b"rotten")
    fetched(tmp_path, serve(ARCHIVE))
    assert (folder / "train-images").read_bytes() == FILES["train-images"]


def test_if_an_origin_fails_the_next_one_is_tried_and_reported(tmp_path: Path) -> None:
    origins = (serve(ARCHIVE, size=len(ARCHIVE) + 1, place="first"), serve(ARCHIVE, place="second"))
    assert fetched(tmp_path, *origins)[1] == [
        "tiny: trying first (0 MB)",
        f"tiny: first.tgz has {len(ARCHIVE)} bytes, expected {len(ARCHIVE) + 1}",
        "tiny: trying second (0 MB)",
        f"tiny: stored in {tmp_path / 'tiny'}",
    ]


OUTSIDE = "leads outside of the archive; the archive is refused"
NO_FILE = "'package/train-images' is a link or device, not a file"
NOT_KNOWN = (
    r"^dataset 'tiny' could not be fetched from any origin: fake place: "
    r"fake-place\.tgz is not the known file: md5 is [0-9a-f]{32}, expected 0{32}"
)
TOO_LONG = f"'package/test-labels' has {LABEL_BYTES + 1} bytes, expected at most {LABEL_BYTES}"


def linked(kind: bytes) -> Member:
    return Member("package/train-images", kind=kind, target="/etc/passwd")


def labels(size: int) -> Member:
    return Member("package/test-labels", bytes(size))


@pytest.mark.parametrize(
    ("origin", "error", "message"),
    [
        (serve(b"no tar file at all", checksum="md5:" + "0" * 32), DataError, NOT_KNOWN),
        (serve(ARCHIVE[: LENGTH // 2]), DataError, r"fake-place\.tgz is damaged: "),
        (serve(ARCHIVE[:-9], size=LENGTH), DataError, f"has {LENGTH - 9} bytes, expected {LENGTH}"),
        (serve(tar(Member("../escaped", b"x"), *MEMBERS)), SecurityError, OUTSIDE),
        (serve(tar(Member("package/../../escaped", b"x"), *MEMBERS)), SecurityError, OUTSIDE),
        (serve(tar(Member("/escaped", b"x"), *MEMBERS)), SecurityError, OUTSIDE),
        (serve(tar(linked(tarfile.SYMTYPE), *MEMBERS)), SecurityError, NO_FILE),
        (serve(tar(linked(tarfile.LNKTYPE), *MEMBERS)), SecurityError, NO_FILE),
        (serve(tar(linked(tarfile.CHRTYPE), *MEMBERS)), SecurityError, NO_FILE),
        (serve(tar(linked(tarfile.FIFOTYPE), *MEMBERS)), SecurityError, NO_FILE),
        (serve(tar(*MEMBERS[:-1], labels(LABEL_BYTES + 1))), DataError, TOO_LONG),
        (serve(tar(*MEMBERS[:-1])), DataError, r"fake-place\.tgz lacks package/test-labels"),
        (serve(tar(*MEMBERS[:-1], labels(LABEL_BYTES))), DataError, r"test-labels is corrupt: SHA-256 is"),
    ],
)
def test_an_archive_that_cannot_be_used_is_refused_and_nothing_is_stored(
    tmp_path: Path, origin: Origin, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fetched(tmp_path / "cache", origin)
    assert list((tmp_path / "cache").iterdir()) == []
    assert not (tmp_path / "escaped").exists()


def test_a_cache_that_cannot_be_written_is_an_error_immediately(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ResourceError, match=f"cannot write the data cache {tmp_path / 'cache'}"):
        fetched(tmp_path / "cache", serve(ARCHIVE))


def test_an_interrupted_store_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = store(tmp_path)
    (folder / "test-labels").write_bytes(b"rotten")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetched(tmp_path, serve(ARCHIVE))
    assert (folder / "train-images").read_bytes() == FILES["train-images"]
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_dataset_that_needs_no_fetching_is_refused_with_the_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'digits' cannot be fetched; expected one of mnist, fashion_mnist, cifar10"):
        fetch("digits", tmp_path)


def test_the_command_fills_the_cache_and_lists_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["list", "--cache-dir", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["name", *DATASETS]
    assert lines[1].split(maxsplit=5)[1:] == ["1x8x8", "10", "1438", "359", "nothing to fetch"]
    assert any(line.endswith("to get it: runner data fetch mnist") for line in lines)
    assert any(line.endswith("your files: name an .npz file, as in data=arrays data.path=my.npz") for line in lines)
    monkeypatch.setitem(ORIGINS, "tiny", (TINY, (serve(ARCHIVE),)))
    main(["fetch", "tiny", "--cache-dir", str(tmp_path)])
    assert f"tiny: stored in {tmp_path / 'tiny'}" in capsys.readouterr().out
    monkeypatch.setitem(DATASETS, "tiny", lambda: SimpleNamespace(facts=lambda: TINY.facts))
    main(["list", "--cache-dir", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[-1].endswith(str(tmp_path / "tiny"))


@pytest.mark.parametrize("arguments", [[], ["fetch"], ["fetch", "digits"], ["take", "mnist"]])
def test_wrong_arguments_are_a_configuration_error(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"; see `runner data.* --help`"):
        main(arguments)


def test_overrides_may_follow_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.yaml").write_text('defaults: ["/schema/data/digits@_here_"]')
    main(["convert", str(tmp_path / "records"), "--shards", "3", "--config-dir", str(tmp_path), "data=mine"])
    assert "train: 1438 examples in 3 files\n" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="unrecognized arguments: data=digits; see `runner data --help`"):
        main(["list", "--cache-dir", str(tmp_path), "data=digits"])


def test_tar_members_are_found_with_and_without_leading_dot() -> None:
    data = tar(Member("./usr/a", b"first"), Member("usr/b", b"second"), mode="w:xz")
    assert read_tar(io.BytesIO(data), {"usr/a": 5, "usr/b": 6}) == {"usr/a": b"first", "usr/b": b"second"}


def test_a_file_that_is_not_a_tar_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tgz").write_bytes(b"<html>sign in first</html>")
    with pytest.raises(DataError, match=r"a\.tgz is damaged"):
        read_tar(tmp_path / "a.tgz", {})
    monkeypatch.setattr(archive, "UNPACKED_LIMIT", 1000)
    data = tar(Member("filler", bytes(900)), Member("more", bytes(101)), Member("wanted", b""))
    with pytest.raises(DataError, match="unpacks to more than 1000 bytes"):
        read_tar(io.BytesIO(data), {"wanted": 10})


COMPRESSED = gzip.compress(b"abc" * 99, mtime=0)


def test_gunzip_returns_the_contents_and_refuses_damaged_data() -> None:
    assert gunzip(COMPRESSED, 297, "x.gz") == b"abc" * 99
    with pytest.raises(DataError, match=r"x\.gz is cut off after"):
        gunzip(COMPRESSED[:-4], 297, "x.gz")
    damaged = bytearray(COMPRESSED)
    damaged[-8] ^= 1  # a bit of the checksum at the end of the gzip data
    with pytest.raises(DataError, match=r"x\.gz is damaged: .*incorrect data check"):
        gunzip(bytes(damaged), 297, "x.gz")


def test_gunzip_stops_at_the_limit() -> None:
    bomb = gzip.compress(bytes(10_000_000), mtime=0)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"x\.gz decompresses to more than 1000 bytes"):
            gunzip(bomb, 1000, "x.gz")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000, "the whole bomb was decompressed"


def test_an_ar_member_after_a_member_of_odd_length_is_found_and_a_missing_one_named(tmp_path: Path) -> None:
    (tmp_path / "a.deb").write_bytes(ar({"debian-binary": b"2.0", "data.tar.xz": b"payload"}))
    assert read_ar_member(tmp_path / "a.deb", "data.tar.xz") == b"payload"
    with pytest.raises(DataError, match=r"a\.deb lacks control\.tar\.xz"):
        read_ar_member(tmp_path / "a.deb", "control.tar.xz")


def test_download_stores_the_response(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * 3_000_000)
    download((tmp_path / "source").as_uri(), tmp_path / "target", 3_000_000)
    assert (tmp_path / "target").read_bytes() == b"x" * 3_000_000


@pytest.mark.parametrize(
    ("address", "seconds", "message"),
    [
        pytest.param("", 9.0, "sends more than 100 bytes, the expected size", id="too long"),
        pytest.param("", -1.0, "sent only 100 bytes in", id="too late"),
        # No process listens on port 1.
        pytest.param("http://127.0.0.1:1/x", 9.0, r"^http://127.* cannot be read: .*refused", id="no answer"),
    ],
)
def test_a_download_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, seconds: float, message: str
) -> None:
    (tmp_path / "source").write_bytes(bytes(100 if seconds < 0 else 101))
    monkeypatch.setattr(archive, "_TOTAL_SECONDS", seconds)
    with pytest.raises(DataError, match=message):
        download(address or (tmp_path / "source").as_uri(), tmp_path / "target", 100)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Create commands npm, apt-get and pip that run ``script``, and remove all other commands from the path."""
    folder.mkdir()
    for name in ("npm", "apt-get", "pip"):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(folder))


def test_packages_are_downloaded_without_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "UNPACKED_LIMIT", 512)
    install(tmp_path / "bin", monkeypatch, 'echo "$@" > asked')
    download_package("npm", "some-data@1.2.3", tmp_path)
    assert (tmp_path / "asked").read_text().split() == ["pack", "some-data@1.2.3", "--silent", "--ignore-scripts"]
    download_package("apt-get", "some-data=1.2-3", tmp_path)
    assert (tmp_path / "asked").read_text().split() == ["--quiet=2", "download", "some-data=1.2-3"]
    download_package("pip", "some-data==1.2", tmp_path)
    expected = ["download", "--quiet", "--no-deps", "--no-binary", "some-data", "some-data==1.2"]
    assert (tmp_path / "asked").read_text().split() == expected


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'no such package' >&2; exit 7", r"npm pack gone@1 .* ended with exit code 7: 'no such package'"),
        # With exec, the process that is killed is also the process that holds the pipes open.
        ("exec /bin/sleep 600", r"npm pack gone@1 .* took more than"),
        ("exec /usr/bin/head -c 1537 /dev/zero > file", r"npm pack gone@1 .* wrote a file of more than 1536 bytes"),
    ],
)
def test_a_package_client_that_fails_or_hangs_or_writes_too_much_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    install(tmp_path / "bin", monkeypatch, script)
    if "sleep" in script:
        monkeypatch.setattr(archive, "_TOTAL_SECONDS", 0.05)
    monkeypatch.setattr(archive, "UNPACKED_LIMIT", 1536)
    with pytest.raises(DataError, match=message):
        download_package("npm", "gone@1", tmp_path)


def test_a_missing_package_client_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="the command 'npm' is not installed"):
        download_package("npm", "some-data@1.2.3", tmp_path)
