"""The origin of a run: command, machine, and the state of its code."""

import hashlib
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from runner.records import provenance
from runner.records.provenance import (
    CodeState,
    Provenance,
    code_of,
    command_line,
    provenance_here,
    provenance_tags,
    text_of,
)
from runner.system.machine import usable_cores, usable_memory


def test_the_command_can_be_typed_again_without_its_secrets() -> None:
    line = command_line(["/venv/bin/runner", "parallelism.shard={fc1: column}", "my.token=abc"])
    assert shlex.split(line) == ["/venv/bin/runner", "parallelism.shard={fc1: column}", "my.token=[redacted]"]


def test_command_machine_and_checkout_are_those_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "orig_argv", ["runner", "a b"])
    found, _ = provenance_here()
    assert (found.command_line, found.working_directory) == ("runner 'a b'", str(tmp_path))
    assert (found.cores, found.memory_bytes) == (usable_cores(), usable_memory())
    checkouts = [code.folder for code in found.code]
    project = Path(__file__).parents[2]
    assert checkouts == ([str(project)] if (project / ".git").exists() else [])


def test_repositories_of_one_name_have_tags_of_their_own() -> None:
    codes = [CodeState(folder, commit * 40, "", 0, []) for folder, commit in (("/a/own", "1"), ("/b/own", "2"))]
    tags = provenance_tags(Provenance("runner", "/home", 2, 1024, codes))
    assert {name: text[0] for name, text in tags.items() if "code" in name} == {
        "runner.code.a/own": "1",
        "runner.code.b/own": "2",
    }


def test_tags_name_everything() -> None:
    changed = CodeState("/home/project", "a" * 40, "b" * 64, 10, ["new.py"])
    assert provenance_tags(Provenance("runner", "/home", 2, 1024, [changed, CodeState("/x/own", "", "", 0, [])])) == {
        "runner.command_line": "runner",
        "runner.working_directory": "/home",
        "runner.cores": "2",
        "runner.memory_bytes": "1024",
        "runner.code.project": f"{'a' * 40}, changed (SHA-256 {'b' * 64}), untracked: new.py",
        "runner.code.own": "no commit",
    }


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


def test_commit_changes_and_untracked_files_are_recorded(repository: Path) -> None:
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


def test_no_diff_is_kept_without_changes(repository: Path) -> None:
    (code,) = code_of([repository])
    assert (code.state.diff_sha256, code.state.diff_bytes, code.state.untracked) == ("", 0, [])
    assert text_of([code]) == ""


def test_many_changes_are_cut_with_a_note(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_repository_is_listed_once_and_ignores_untracked_files(repository: Path) -> None:
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
