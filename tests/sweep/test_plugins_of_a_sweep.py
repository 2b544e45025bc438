"""A sweep with plugins is resumed with the same plugins from the same sources."""

import json
import shutil
from pathlib import Path

import pytest

from runner.cli import main
from runner.errors import Interrupted
from tests.fake_training import Call, FakeTraining
from tests.plugin_tables import EXAMPLES, restored_tables
from tests.refusal import Capture, refused

SWEEP = ["--plugin", "all_conv.py", "-m", "--config-dir", "conf", "model=all_conv", "tracking=none"]
PLUGIN = ["--plugin", "all_conv.py"]
RESUME = ["sweep", "resume", "sweep"]


@pytest.fixture
def interrupted(fake_training: FakeTraining, folder: Path) -> FakeTraining:
    """A sweep over two seeds of a model that a plugin brings, stopped in its first job."""
    shutil.copytree(EXAMPLES / "own_model", folder, dirs_exist_ok=True)

    def stop(call: Call) -> None:
        raise Interrupted(2)

    fake_training.act = stop
    with restored_tables():
        assert main([*SWEEP, "hydra.sweep.dir=sweep", "seed=1,2"]) == 130
    fake_training.act = lambda call: None
    fake_training.calls.clear()
    return fake_training


def test_a_sweep_is_resumed_with_its_plugins(interrupted: FakeTraining) -> None:
    with restored_tables():
        assert main([*PLUGIN, *RESUME]) == 0
    assert [call.config.model.name for call in interrupted.calls] == ["all_conv", "all_conv"]


def test_a_stored_sweep_loads_no_code_by_itself(interrupted: FakeTraining, folder: Path, capsys: Capture) -> None:
    with restored_tables():
        message = refused(RESUME, capsys)
    plugin = folder / "all_conv.py"
    assert f"the sweep needs its plugins: runner --plugin {plugin} sweep resume {folder / 'sweep'}" in message
    with restored_tables():
        assert main([*PLUGIN, *RESUME, "--config-dir", "conf", "--accept-changes", "seed=3"]) == 0
    capsys.readouterr()
    with restored_tables():
        assert "the sweep needs its plugins" in refused([*RESUME, "seed=3"], capsys), "the changed plan knows them too"


def test_the_table_of_a_sweep_needs_no_plugin(interrupted: FakeTraining, folder: Path, capsys: Capture) -> None:
    capsys.readouterr()
    with restored_tables():
        assert main(["sweep", "status", "sweep"]) == 0
    assert "1 interrupted, 1 not started" in capsys.readouterr().out
    frozen = folder / "sweep" / "0" / "frozen.yaml"
    stored = frozen.read_text()
    frozen.write_text(stored.replace("monitor: null", "monitor: colour"))
    assert "train.monitor='colour': expected one of val/accuracy" in refused(["sweep", "status", "sweep"], capsys)
    frozen.write_text("train: 3")
    assert "expected a configuration with the sections train and data" in refused(["sweep", "status", "sweep"], capsys)


def test_a_plugin_that_was_edited_is_refused(interrupted: FakeTraining, folder: Path, capsys: Capture) -> None:
    with (folder / "all_conv.py").open("a") as file:
        file.write("# edited\n")
    with restored_tables():
        message = refused([*PLUGIN, *RESUME], capsys)
    assert f"plugin {folder / 'all_conv.py'} was changed: its SHA-256 was" in message
    assert "a sweep is resumed with the plugins with which it was started" in message
    assert interrupted.calls == []


def test_a_plan_of_an_earlier_version_names_no_plugins(interrupted: FakeTraining, folder: Path) -> None:
    path = folder / "sweep" / "plan.json"
    stored = json.loads(path.read_text())
    del stored["plugins"]
    path.write_text(json.dumps(stored))
    with restored_tables():
        assert main([*PLUGIN, *RESUME]) == 0
