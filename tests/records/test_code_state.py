"""Commits, changes and untracked files of the repositories a run was made with."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from runner.records import provenance
from runner.records.provenance import code_of, text_of


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@localhost", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of ``code.py``."""
    top = tmp_path / "project"
    top.mkdir()
    git(top, "init", "-q")
    (top / "code.py").write_text("one = 1\n")
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "first")
    return top


def test_commit_changes_and_untracked_files_are_told(repository: Path) -> None:
    (repository / "code.py").write_text("one = 2\n")
    (repository / "outputs").mkdir()
    (repository / "outputs" / "a").touch()
    (repository / "new.py").touch()
    (code,) = code_of([repository / "outputs"])
    changes = git(repository, "diff", "HEAD")
    assert code.state.folder == str(repository)
    assert code.state.commit == git(repository, "rev-parse", "HEAD").strip()
    assert code.state.untracked == ["new.py", "outputs/"]
    assert code.state.diff_sha256 == hashlib.sha256(changes.encode()).hexdigest()
    assert code.state.diff_bytes == len(changes)
    assert code.diff == changes
    assert text_of([code]) == f"# changes in {repository} since commit {code.state.commit}\n{changes}"


def test_without_changes_there_is_nothing_to_keep(repository: Path) -> None:
    (code,) = code_of([repository])
    assert (code.state.diff_sha256, code.state.diff_bytes, code.state.untracked) == ("", 0, [])
    assert text_of([code]) == ""


def test_many_changes_are_cut_and_that_is_told(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "MAX_DIFF_BYTES", 60)
    (repository / "code.py").write_text("one = 2\n" * 100)
    (code,) = code_of([repository])
    assert code.cut
    assert len(code.diff) == 60
    assert code.state.diff_bytes > 800
    assert text_of([code]).endswith(f"\n# cut: 60 of {code.state.diff_bytes:,} bytes are here\n")


def test_secrets_are_not_kept(repository: Path) -> None:
    (repository / "code.py").write_text('token = "abcdef"\n')
    (code,) = code_of([repository])
    assert "abcdef" not in code.diff
    assert "+token = [redacted]" in code.diff


def test_a_repository_is_told_once_and_a_file_it_does_not_track_is_not_its_own(repository: Path) -> None:
    stranger = repository / "environment" / "package.py"
    stranger.parent.mkdir()
    stranger.touch()
    assert code_of([], [stranger]) == []
    both = code_of([repository], [repository / "code.py"])
    assert [code.state.folder for code in both] == [str(repository)]


def test_outside_of_repositories_and_before_the_first_commit(tmp_path: Path) -> None:
    assert code_of([tmp_path]) == []
    git(tmp_path, "init", "-q")
    (code,) = code_of([tmp_path])
    assert (code.state.commit, code.state.diff_bytes) == ("", 0)


def test_without_git_nothing_is_known(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert code_of([repository], [repository / "code.py"]) == []
