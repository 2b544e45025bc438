"""From a name on the command line to a plugin, or to a message with file and line."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from runner.errors import ConfigError
from runner.plugin import Plugin
from runner.plugin.loading import execute, locate

GOOD = "from runner.plugin import Plugin\n\nplugin = Plugin()\n"


def written(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_file_is_executed_as_it_was_read(tmp_path: Path) -> None:
    located = locate(written(tmp_path, GOOD))
    assert located.sha256 == hashlib.sha256(GOOD.encode()).hexdigest()
    (tmp_path / "mine.py").write_text("raise RuntimeError('another text by now')")
    assert execute(located) == Plugin()


def test_a_reference_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    assert locate("mine.py").reference == path


def test_a_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").touch()
    written(tmp_path / "mypackage", GOOD, "parts.py")
    monkeypatch.syspath_prepend(tmp_path)
    located = locate("mypackage.parts")
    assert (located.reference, located.path) == ("mypackage.parts", tmp_path / "mypackage" / "parts.py")
    assert execute(located) is sys.modules["mypackage.parts"].plugin
    for name in ("mypackage", "mypackage.parts"):
        monkeypatch.delitem(sys.modules, name)


def test_a_pinned_source_must_be_that_one(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    sha256 = locate(path).sha256
    assert locate(f"{path}#sha256={sha256}").reference == path
    (tmp_path / "mine.py").write_text(GOOD + "\n")
    with pytest.raises(ConfigError, match=rf"mine\.py was changed: its SHA-256 is [0-9a-f]+, expected {sha256} of"):
        locate(f"{path}#sha256={sha256}")


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("none.py", r"--plugin none\.py: cannot read .*/none\.py: No such file or directory"),
        ("no_such_module", "--plugin no_such_module: Python finds no module of that name; install it"),
        ("no_such_package.module", "No module named 'no_such_package'"),
        ("my-file", r"--plugin my-file: expected a file, FILE\.py, or the name of a module"),
        ("sys", "--plugin sys: Python finds no module of that name"),
    ],
)
def test_what_is_not_there_is_refused(reference: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        locate(reference)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.py")
    with pytest.raises(ConfigError, match=r"^--plugin .*/mine\.py: .*/mine\.py is a FIFO: expected a regular file$"):
        locate(str(tmp_path / "mine.py"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "import numpy\nimport no_such_library\n",
            r"mine\.py:2: ModuleNotFoundError: No module named",
        ),
        ("x = 1\ny = (\n", r"mine\.py:2: SyntaxError: '\(' was never closed"),
        ("def f():\n    return 1 / 0\n\nf()\n", r"mine\.py:2: ZeroDivisionError: division by zero"),
        (GOOD.replace("Plugin()", "Plugin(models=3)"), r"mine\.py:3: Plugin\(models=\.\.\.\): came 3, expected a dict"),
        ("x = 1\n", r"mine\.py: it has no plugin; expected `plugin = runner\.plugin\.Plugin\("),
        ("plugin = 3\n", r"mine\.py: plugin is of class int; expected"),
    ],
)
def test_what_goes_wrong_in_a_file_is_told_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        execute(locate(written(tmp_path, text)))


def test_a_file_that_failed_is_no_module(tmp_path: Path) -> None:
    before = set(sys.modules)
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        execute(locate(written(tmp_path, "1 / 0\n")))
    assert set(sys.modules) == before


def test_a_plugin_that_leaves_python_leaves(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        execute(locate(written(tmp_path, "import sys\nsys.exit(3)\n")))
