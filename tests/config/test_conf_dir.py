"""Where the YAML files are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config import conf_dir as module
from runner.config.conf_dir import conf_dir
from runner.errors import ResourceError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package folder in a checkout, which the module believes to be its own."""
    folder = tmp_path / "checkout" / "runner"
    folder.mkdir(parents=True)
    monkeypatch.setattr(module, "__file__", str(folder / "config" / "conf_dir.py"))
    return folder


def add_conf(parent: Path) -> Path:
    (parent / "conf").mkdir()
    (parent / "conf" / "config.yaml").touch()
    return parent / "conf"


def test_in_a_checkout_they_are_beside_the_package(package: Path):
    assert add_conf(package.parent) == conf_dir()


def test_installed_they_are_in_the_package(package: Path):
    add_conf(package.parent)
    assert add_conf(package) == conf_dir()


def test_a_broken_installation_is_told(package: Path):
    with pytest.raises(ResourceError, match=r"no configuration files at .*runner/conf and .*checkout/conf: reinstall"):
        conf_dir()
