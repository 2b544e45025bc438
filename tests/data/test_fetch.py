"""Fetching of archives that the tests make; no network is used."""

import os
import tarfile
from pathlib import Path

import pytest

from runner.data import fetch as commands
from runner.data.fetch import fetch, fetch_published, main
from runner.data.origins import ORIGINS
from runner.data.published import load_published
from runner.errors import ConfigError, DataError, ResourceError, SecurityError


def _silent(_: str) -> None:
    """Report nothing."""


def _assert_nothing_stored(root: Path) -> None:
    assert not root.exists() or list(root.iterdir()) == []


def test_stores_only_the_wanted_files_and_they_load(tmp_path, tiny, tiny_members, make_tar, serve):
    root = tmp_path / "cache"
    folder = fetch_published(tiny.published, (serve(make_tar(tiny_members)),), root, _silent)
    assert folder == root / "tiny"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == tiny.files
    assert [path.name for path in root.iterdir()] == ["tiny"], "a scratch folder was left behind"
    assert len(load_published(tiny.published, str(root)).train) == 5


def test_a_complete_cache_is_left_alone(tmp_path, tiny):
    tiny.store(tmp_path)
    said: list[str] = []
    fetch_published(tiny.published, (), tmp_path, said.append)
    assert said == [f"tiny: already in {tmp_path / 'tiny'}"]


def test_a_corrupt_cache_is_replaced(tmp_path, tiny, tiny_members, make_tar, serve):
    folder = tiny.store(tmp_path / "cache")
    (folder / "train-images").write_bytes(b"rotten")
    fetch_published(tiny.published, (serve(make_tar(tiny_members)),), tmp_path / "cache", _silent)
    assert (folder / "train-images").read_bytes() == tiny.files["train-images"]


def test_the_next_origin_is_tried_and_reported(tmp_path, tiny, tiny_members, make_tar, serve):
    data = make_tar(tiny_members)
    said: list[str] = []
    origins = (serve(data, size=len(data) + 1, place="first"), serve(data, place="second"))
    fetch_published(tiny.published, origins, tmp_path / "cache", said.append)
    assert said == [
        "tiny: trying first (0 MB)",
        f"tiny: first.tgz has {len(data)} bytes, expected {len(data) + 1}",
        "tiny: trying second (0 MB)",
        f"tiny: stored in {tmp_path / 'cache' / 'tiny'}",
    ]


def test_an_archive_with_a_wrong_checksum_is_not_opened(tmp_path, tiny, serve):
    origin = serve(b"no tar file at all", checksum="md5:" + "0" * 32)
    with pytest.raises(
        DataError,
        match=r"'tiny' could not be fetched from any origin: fake place: "
        r"fake-place\.tgz is not the known file: md5 is [0-9a-f]{32}, expected 0{32}",
    ):
        fetch_published(tiny.published, (origin,), tmp_path / "cache", _silent)
    _assert_nothing_stored(tmp_path / "cache")


def test_a_truncated_archive_is_refused_even_if_its_facts_agree(tmp_path, tiny, tiny_members, make_tar, serve):
    data = make_tar(tiny_members)
    with pytest.raises(DataError, match=r"fake-place\.tgz is damaged: "):
        fetch_published(tiny.published, (serve(data[: len(data) // 2]),), tmp_path / "cache", _silent)
    _assert_nothing_stored(tmp_path / "cache")


def test_a_truncated_download_is_refused_by_its_size(tmp_path, tiny, tiny_members, make_tar, serve):
    data = make_tar(tiny_members)
    with pytest.raises(DataError, match=f"has {len(data) - 9} bytes, expected {len(data)}"):
        fetch_published(tiny.published, (serve(data[:-9], size=len(data)),), tmp_path / "cache", _silent)


@pytest.mark.parametrize("name", ["../escaped", "package/../../escaped", "/escaped"])
def test_a_member_that_points_outside_is_refused(tmp_path, tiny, tiny_members, make_tar, serve, member, name):
    data = make_tar([member(name, b"x"), *tiny_members])
    with pytest.raises(SecurityError, match="leads outside of the archive; the archive is refused"):
        fetch_published(tiny.published, (serve(data),), tmp_path / "cache", _silent)
    _assert_nothing_stored(tmp_path / "cache")
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_a_link_or_device_is_refused(tmp_path, tiny, tiny_members, make_tar, serve, member, kind):
    link = member("package/train-images", kind=kind, target="/etc/passwd")
    data = make_tar([link, *tiny_members])
    with pytest.raises(SecurityError, match=r"'package/train-images' is a link or a device, not a file"):
        fetch_published(tiny.published, (serve(data),), tmp_path / "cache", _silent)
    _assert_nothing_stored(tmp_path / "cache")


def test_an_oversize_member_is_not_read(tmp_path, tiny, tiny_members, make_tar, serve, member):
    size = tiny.published.test_labels.size
    data = make_tar([*tiny_members[:-1], member("package/test-labels", bytes(size + 1))])
    with pytest.raises(DataError, match=f"'package/test-labels' has {size + 1} bytes, expected at most {size}"):
        fetch_published(tiny.published, (serve(data),), tmp_path / "cache", _silent)
    _assert_nothing_stored(tmp_path / "cache")


def test_a_missing_member_is_named(tmp_path, tiny, tiny_members, make_tar, serve):
    with pytest.raises(DataError, match=r"fake-place\.tgz lacks package/test-labels"):
        fetch_published(tiny.published, (serve(make_tar(tiny_members[:-1])),), tmp_path / "cache", _silent)


def test_files_that_decode_to_other_data_are_not_stored(tmp_path, tiny, tiny_members, make_tar, serve, member):
    other = bytes(tiny.published.test_labels.size)
    data = make_tar([*tiny_members[:-1], member("package/test-labels", other)])
    with pytest.raises(DataError, match=r"test-labels is corrupt: SHA-256 is"):
        fetch_published(tiny.published, (serve(data),), tmp_path / "cache", _silent)
    _assert_nothing_stored(tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_an_error_at_once(tmp_path, tiny, tiny_members, make_tar, serve):
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ResourceError, match=f"cannot write the data cache {tmp_path / 'cache'}"):
        fetch_published(tiny.published, (serve(make_tar(tiny_members)),), tmp_path / "cache", _silent)


def test_an_interrupted_store_leaves_the_old_files(tmp_path, tiny, tiny_members, make_tar, serve, monkeypatch):
    folder = tiny.store(tmp_path / "cache")
    (folder / "test-labels").write_bytes(b"rotten")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch_published(tiny.published, (serve(make_tar(tiny_members)),), tmp_path / "cache", _silent)
    assert (folder / "train-images").read_bytes() == tiny.files["train-images"]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["tiny"]


def test_a_dataset_that_needs_no_fetching_is_refused_with_the_options(tmp_path):
    with pytest.raises(ConfigError, match="'digits' cannot be fetched; expected one of mnist, fashion_mnist, cifar10"):
        fetch("digits", tmp_path)


def test_list_shows_cached_datasets_and_how_to_fetch_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(["list", "--cache-dir", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "name",
        "digits",
        "synthetic",
        "mnist",
        "fashion_mnist",
        "cifar10",
        "arrays",
        "image_folder",
    ]
    assert lines[1].split(maxsplit=5)[1:] == ["1x8x8", "10", "1438", "359", "nothing to fetch"]
    assert lines[3].endswith("to get it: runner data fetch mnist")
    assert lines[6].endswith("your files: name an .npz file, as in data=arrays data.path=my.npz")


def test_fetch_fills_the_cache_that_list_then_shows(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tiny,
    tiny_members,
    make_tar,
    serve,
):
    monkeypatch.setitem(ORIGINS, "tiny", (tiny.published, (serve(make_tar(tiny_members)),)))
    root = tmp_path / "cache"
    main(["fetch", "tiny", "--cache-dir", str(root)])
    assert f"tiny: stored in {root / 'tiny'}" in capsys.readouterr().out
    monkeypatch.setitem(commands.DATASETS, "tiny", lambda: _Settings(tiny.published.facts))
    main(["list", "--cache-dir", str(root)])
    assert capsys.readouterr().out.splitlines()[-1].endswith(str(root / "tiny"))


class _Settings:
    """The part of a dataset's settings that the table needs."""

    def __init__(self, facts: object) -> None:
        self.facts = lambda: facts


@pytest.mark.parametrize("arguments", [[], ["fetch"], ["fetch", "digits"], ["take", "mnist"]])
def test_wrong_arguments_exit_as_a_configuration_error(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: runner data" in capsys.readouterr().err
