"""Git in tests."""

import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    """Run a git command with an identity and return its output."""
    identity = ["-c", "user.name=n", "-c", "user.email=e@localhost", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
