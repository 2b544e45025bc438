"""A run with a plugin: in its workers, in its summary, and when it is resumed."""

import shutil
from pathlib import Path

import pytest

from runner.plugin.loading import locate
from runner.records.stored_run import read_plugins
from tests.integration.command import QUIET, Command, Ended, run_command, succeed, summary_of
from tests.plugin_tables import EXAMPLES

SHORT = (
    *QUIET,
    "hydra.run.dir=run",
    "train.steps=2",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the example whose op and model are known to no package."""
    return shutil.copytree(EXAMPLES / "own_op", tmp_path / "own")


def begin(folder: Path, *more: str) -> Ended:
    return run_command(folder, "--plugin", "swish.py", "--config-dir", "conf", "model=swish_mlp", *SHORT, *more)


def test_workers_load_the_plugin_of_the_master_and_the_summary_names_it(folder: Path) -> None:
    command = begin(folder)
    assert command.code == 0, command.errors
    summary = summary_of(folder / "run")
    assert summary.workers == 2
    assert summary.plugins == {str(folder / "swish.py"): locate(str(folder / "swish.py")).sha256}


def test_no_process_imports_a_file_of_the_folder_in_place_of_a_library(folder: Path) -> None:
    for library in ("json", "msgpack", "numpy", "random", "uuid", "zmq"):
        (folder / f"{library}.py").write_text("raise SystemExit(f'{__file__} was imported')\n")
    command = begin(
        folder, "-m", "hydra.sweep.dir=sweep", "seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"
    )
    assert command.code == 0, command.errors
    assert [summary_of(folder / "sweep" / job).workers for job in "01"] == [2, 2]


def test_a_file_that_changes_meanwhile_is_refused_by_the_workers(folder: Path) -> None:
    # The file itself is what changes it, after the master has read it.
    with (folder / "swish.py").open("a") as file:
        file.write('\nwith open(__file__, "a") as own:\n    own.write("# changed\\n")\n')
    command = begin(folder)
    assert command.code == 7
    assert "exited with code 2 (ConfigError)" in command.errors
    assert "swish.py was changed: its SHA-256 is" in command.errors


def test_a_run_is_resumed_with_its_plugin_and_not_without_it(folder: Path) -> None:
    begin(folder)
    without = run_command(folder, "resume=run", "train.steps=4")
    assert without.code == 2
    assert "model.name is 'swish_mlp': expected one of mlp" in without.errors
    assert "or a name from a --plugin" in without.errors
    succeed(folder, "--plugin", "swish.py", "resume=run", "train.steps=4")
    assert summary_of(folder / "run").steps == 4


def test_a_run_is_not_resumed_with_a_changed_plugin(folder: Path) -> None:
    begin(folder)
    before = summary_of(folder / "run")
    with (folder / "swish.py").open("a") as file:
        file.write("# changed\n")
    resumed = run_command(folder, "--plugin", "swish.py", "resume=run", "train.steps=4")
    assert resumed.code == 2
    now = locate(str(folder / "swish.py")).sha256
    (was,) = before.plugins.values()
    assert f"plugin {folder / 'swish.py'} was changed: its SHA-256 was {was}, and is {now}. Start a" in resumed.errors
    assert summary_of(folder / "run") == before
    again = run_command(folder, "--plugin", "swish.py", "rerun", "run", "--output", "second")
    assert f"plugin {folder / 'swish.py'} was changed: its SHA-256 was {was}" in again.errors


def test_a_run_reports_a_plugin_that_moved_or_is_not_given(folder: Path) -> None:
    """Separate processes, because the terminal has the warnings before the log of the run is open."""
    succeed(folder, "--plugin", "swish.py", "model=mlp", *SHORT)
    (folder / "run" / "summary.json").unlink()  # as after a kill
    shutil.copy(folder / "swish.py", folder / "elsewhere.py")
    log = folder / "run" / "run.log"
    for arguments, expected in (
        (
            ("--plugin", "elsewhere.py", "resume=run", "train.steps=3"),
            f"plugin {folder / 'swish.py'} is now {folder / 'elsewhere.py'}",
        ),
        (("resume=run", "train.steps=4"), f"plugin {folder / 'elsewhere.py'} of the run is not given"),
    ):
        command = Command(folder, *arguments)
        assert command.finish() == 0, command.errors
        assert expected in command.errors
        assert expected in log.read_text()
    assert summary_of(folder / "run").steps == 4
    assert read_plugins(folder / "run") == {}, "the newest start had none"
