"""The cache of machine code: its key, damaged files, and folders that cannot be written."""

import errno
import logging
from pathlib import Path

import pytest

from runner.kernels.gpu import nvrtc
from runner.kernels.gpu.nvrtc import KeptCode

Asked = list[tuple[str, int]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The calls of a compiler that gives different code for different arguments."""
    asked: Asked = []

    def compiled(source: str, capability: int) -> bytes:
        asked.append((source, capability))
        return f"{source} for {capability} by {nvrtc.version()}".encode()

    monkeypatch.setattr(nvrtc, "compiled", compiled)
    monkeypatch.setattr(nvrtc, "version", lambda: "13.5")
    return asked


def test_another_process_uses_the_cached_code(tmp_path: Path, asked: Asked) -> None:
    folder = tmp_path / "not" / "there"
    found = [KeptCode(folder).compiled(source, 90) for source in ("a", "b", "a")]
    assert found == [b"a for 90 by 13.5", b"b for 90 by 13.5", b"a for 90 by 13.5"]
    assert asked == [("a", 90), ("b", 90)]
    assert sorted(path.suffix for path in folder.iterdir()) == [".cubin", ".cubin"]
    assert folder.stat().st_mode & 0o077 == 0


def test_the_cache_key_has_gpu_compiler_and_options(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = KeptCode(tmp_path)
    assert code.compiled("a", 90) != code.compiled("a", 80)
    monkeypatch.setattr(nvrtc, "version", lambda: "13.6")
    assert code.compiled("a", 90) == b"a for 90 by 13.6"
    monkeypatch.setattr(nvrtc, "options", lambda source, capability: ("-O0",))
    code.compiled("a", 90)
    assert len(asked) == 4


def test_a_damaged_file_is_compiled_again_with_a_warning(
    tmp_path: Path, asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    code = KeptCode(tmp_path)
    good = code.compiled("a", 90)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:10], bytes([whole[0] ^ 1]) + whole[1:], whole[:-1] + b"?"):
        path.write_bytes(damaged)
        caplog.clear()
        assert code.compiled("a", 90) == good
        assert f"{path} is damaged and is compiled again" in caplog.text
        assert path.read_bytes() == whole
    assert len(asked) == 6


def test_if_the_cache_cannot_be_written_one_warning_is_logged(
    tmp_path: Path, asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    code = KeptCode(tmp_path / "file" / "folder")
    with caplog.at_level(logging.WARNING):
        assert [code.compiled(source, 90) for source in "ab"] == [b"a for 90 by 13.5", b"b for 90 by 13.5"]
    told = [record.getMessage() for record in caplog.records if "cannot be cached" in record.getMessage()]
    assert len(told) == 1


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert KeptCode(tmp_path).compiled("a", 90) == b"a for 90 by 13.5"
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_the_compiler_is_asked_each_time(asked: Asked) -> None:
    code = KeptCode(None)
    assert code.compiled("a", 90) == code.compiled("a", 90)
    assert len(asked) == 2
