"""Fixtures of the tests of the Python interface."""

from pathlib import Path

import pytest


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory with a separate cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return folder
