"""The table of :mod:`tests.tables.own_table` in a separate folder."""

import shutil
from pathlib import Path

import pytest

from tests.tables.own_table import TABLE, run, write


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of the table in a folder of YAML files; the working directory is empty."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return write(tmp_path / "conf" / "table" / "mine.yaml", TABLE)


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of the table, whose four jobs have been run; tests only read it."""
    folder = tmp_path_factory.mktemp("table")
    own = write(folder / "conf" / "table" / "mine.yaml", TABLE)
    (folder / "work").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "work")
        assert run(own) == 0
    return own


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a copy of the finished table; the working directory has the copied runs."""
    shutil.copytree(finished_once.parents[2], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "conf" / "table" / "mine.yaml"
