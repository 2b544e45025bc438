"""The option ``--plugin``, and the entry points of installed packages."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from runner.cli import main
from runner.commands import plugins
from runner.commands.plugins import install_plugins, split_plugins
from runner.errors import ConfigError
from runner.plugin import provenance
from tests.fake_training import FakeTraining
from tests.plugin_tables import EXAMPLES, restored_tables
from tests.refusal import Capture, refused

SMALL_NET = str(EXAMPLES / "own_model" / "all_conv.py")
CONF = str(EXAMPLES / "own_model" / "conf")


def test_plugins_are_taken_out_wherever_they_stand() -> None:
    arguments = ["--plugin", "a.py", "explain", "seed=1", "--plugin=b.c", "model=--plugin", "--plugin=x=y.py"]
    assert split_plugins(arguments) == (["a.py", "b.c", "x=y.py"], ["explain", "seed=1", "model=--plugin"])


@pytest.mark.parametrize("arguments", [["--plugin"], ["--plugin="], ["seed=1", "--plugin", "--cfg"]])
def test_a_plugin_without_a_name_is_refused(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match="--plugin: expected a Python file or module, as in"):
        split_plugins(arguments)


def test_training_and_verbs_know_the_model(fake_training: FakeTraining, capsys: Capture) -> None:
    chosen = ["--plugin", SMALL_NET, "--config-dir", CONF, "model=all_conv", "model.filters=4"]
    with restored_tables():
        assert main(chosen) == 0
        assert main(["explain", *chosen]) == 0
        assert "shrink2" in capsys.readouterr().out
    assert (fake_training.only.config.model.name, fake_training.only.config.model.filters) == ("all_conv", 4)
    assert fake_training.only.overrides == ["model=all_conv", "model.filters=4"]


def test_yaml_without_its_plugin_reports_the_missing_plugin(folder: Path, capsys: Capture) -> None:
    Path("conf/model").mkdir(parents=True)
    Path("conf/model/absent.yaml").write_text('defaults: ["/schema/model/absent@_here_"]')
    message = refused(["--config-dir", "conf", "model=absent"], capsys)
    assert "There is no such option: correct the name, or give the --plugin that defines it." in message


def test_a_plugin_that_fails_ends_the_command_with_its_line(folder: Path, capsys: Capture) -> None:
    Path("broken.py").write_text("\nimport no_such_library\n")
    message = refused(["--plugin", "broken.py"], capsys)
    assert f"{folder / 'broken.py'}:2: ModuleNotFoundError: No module named 'no_such_library'" in message


def test_a_verb_that_reads_no_configuration_takes_none(folder: Path, capsys: Capture) -> None:
    message = refused(["doctor", "--plugin", "mine.py"], capsys)
    assert "--plugin mine.py: `runner doctor` reads no configuration; leave it out" in message


def entry_points(*values: str) -> EntryPoints:
    return EntryPoints(EntryPoint(f"p{i}", value, plugins.GROUP) for i, value in enumerate(values))


@pytest.mark.parametrize("value", ["installed_plugin", "installed_plugin:plugin"])
def test_installed_packages_bring_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    (tmp_path / "installed_plugin.py").write_text("from runner.plugin import Plugin\nplugin = Plugin()\n")
    monkeypatch.syspath_prepend(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr(
        plugins.importlib.metadata, "entry_points", lambda group: asked.append(group) or entry_points(value)
    )
    with restored_tables():
        install_plugins([])
        assert list(provenance()) == ["installed_plugin"]
    assert asked == ["runner.plugins"]


def test_an_entry_point_of_another_object_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins.importlib.metadata, "entry_points", lambda group: entry_points("mine:other"))
    with pytest.raises(ConfigError, match=r"entry point p0 = mine:other of group runner\.plugins: expected a module"):
        install_plugins([])
