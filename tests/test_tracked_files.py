"""Tracked files refer to no path outside the repository, so they are valid in every clone."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SYMLINK = "120000"

MACHINE_PATH = re.compile(r"(?<![\w.~}-])/(?:home/(?!(?:me|project)\b|\{)|(?:root|work|tmp|Users)/)[\w.]")
"""An absolute path below a folder of one machine or user. ``me`` and ``project`` are allowed as examples."""


def tracked() -> Iterator[tuple[str, Path]]:
    """Yield the Git mode and the path of every tracked file, including files that were deleted but not committed."""
    if not (ROOT / ".git").exists():
        pytest.skip(f"{ROOT} is not a Git repository, which lists the tracked files")
    listed = subprocess.run(["git", "ls-files", "-s", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for entry in listed.stdout.split("\0")[:-1]:
        facts, name = entry.split("\t", 1)
        yield facts.split()[0], ROOT / name


def machine_paths(text: str) -> list[str]:
    """Return the lines that contain a path of one machine, each with its number."""
    return [f"{number}: {line}" for number, line in enumerate(text.splitlines(), 1) if MACHINE_PATH.search(line)]


@pytest.mark.parametrize("place", ["home/ada", "root", "work", "Users/ada", "tmp"])
@pytest.mark.parametrize("before", ["", "see ", "'", "file://", "sqlite:///"])
def test_a_path_of_one_machine_is_found(place: str, before: str) -> None:
    line = f"{before}/{place}/project"
    assert machine_paths(f"first\n{line}\n") == [f"2: {line}"]


@pytest.mark.parametrize("path", ["home/me/mlflow.db", "home/{name}/x", "dev/shm/x", "tmp", "homes/x", "networks/x"])
def test_an_example_and_a_folder_of_every_machine_are_allowed(path: str) -> None:
    assert machine_paths(f"in /{path} or https://host/{path} or ../{path} or docs/{path}") == []


def test_no_symbolic_link_is_tracked() -> None:
    links = [path.relative_to(ROOT) for mode, path in tracked() if mode == SYMLINK]
    assert not links, f"tracked symbolic links: {', '.join(map(str, links))}; track the file, or ignore the link"


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    texts = {path: path.read_bytes() for mode, path in tracked() if mode != SYMLINK and path.exists()}
    assert ROOT / "README.md" in texts
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, text in texts.items()
        if b"\0" not in text
        for line in machine_paths(text.decode("utf-8", "replace"))
    ]
    assert not found, "paths of one machine; write a relative path or an example below /home/me:\n" + "\n".join(found)
