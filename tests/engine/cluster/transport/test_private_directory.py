import logging
import tempfile
from pathlib import Path

import pytest

from runner.engine.cluster.transport import private_directory as module
from runner.engine.cluster.transport.private_directory import PrivateDirectory, check_private, remove_abandoned
from runner.errors import ResourceError, SecurityError


def test_directory_is_private_and_removed_on_exit(tmp_path: Path) -> None:
    with PrivateDirectory.create(tmp_path) as directory:
        assert directory.path.stat().st_mode & 0o777 == 0o700
        check_private(directory.path)
        (directory.path / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []
    directory.close()


def test_names_are_random(tmp_path: Path) -> None:
    with PrivateDirectory.create(tmp_path) as one, PrivateDirectory.create(tmp_path) as two:
        assert one.path != two.path


def test_directory_of_a_living_run_is_kept(tmp_path: Path) -> None:
    with PrivateDirectory.create(tmp_path) as living:
        remove_abandoned(tmp_path)
        assert living.path.exists()


def test_only_abandoned_directories_of_runs_are_removed(tmp_path: Path) -> None:
    abandoned = tmp_path / "runner-0123456789abcdef"
    abandoned.mkdir()
    (abandoned / "worker-0").write_text("a socket, say")
    other = tmp_path / "runner-notes"
    other.mkdir()
    link = tmp_path / "runner-fedcba9876543210"
    link.symlink_to(other)
    remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == [link, other]


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701])
def test_directory_accessible_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    open_directory = tmp_path / "open"
    open_directory.mkdir()
    open_directory.chmod(mode)
    with pytest.raises(SecurityError, match=f"mode 0{mode:o} of user .*, expected 0700"):
        check_private(open_directory)


def test_symbolic_link_is_refused(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(private)
    with pytest.raises(SecurityError, match="not a symbolic link"):
        check_private(link)


def test_unusable_parent_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"no private directory for sockets .* No such file"):
        PrivateDirectory.create(tmp_path / "missing")


def test_missing_shared_memory_falls_back_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path / "missing")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with caplog.at_level(logging.WARNING), PrivateDirectory.create() as directory:
        assert directory.path.parent == tmp_path
        assert not directory.in_memory
    assert "cannot be used: tensors between workers go through files in" in caplog.text
