import os
from pathlib import Path

import pytest

from runner.engine.cluster.transport.tokens import new_token, read_token, write_token
from runner.errors import SecurityError


def test_token_is_read_once(tmp_path: Path) -> None:
    token = new_token()
    path = write_token(tmp_path, "worker-0", token)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token(path) == token
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SecurityError, match="No such file or directory; each token file can be read once"):
        read_token(path)


def test_tokens_differ() -> None:
    assert new_token() != new_token()


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    write_token(tmp_path, "worker-0", new_token())
    with pytest.raises(FileExistsError):
        write_token(tmp_path, "worker-0", new_token())


def test_file_readable_by_others_is_refused(tmp_path: Path) -> None:
    path = write_token(tmp_path, "worker-0", new_token())
    path.chmod(0o640)
    with pytest.raises(SecurityError, match=r"mode 0640 of user .*, expected a regular file with mode 0600"):
        read_token(path)


def test_symbolic_link_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(write_token(tmp_path, "worker-0", new_token()))
    with pytest.raises(SecurityError, match="token file"):
        read_token(link)


def test_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    with pytest.raises(SecurityError, match="expected a regular file"):
        read_token(path)


@pytest.mark.parametrize("content", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 63 + "\n"])
def test_malformed_token_is_refused(tmp_path: Path, content: str) -> None:
    path = write_token(tmp_path, "worker-0", content)
    with pytest.raises(SecurityError, match="expected 64 hexadecimal digits and nothing else"):
        read_token(path)
