"""Runs with a plugin, and runs from an installed wheel."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from runner.commands.plugins import GROUP
from runner.plugin.loading import locate
from runner.records.stored_run import read_plugins
from tests.integration.command import QUIET, Command, Ended, run_command, succeed, summary_of
from tests.plugin_tables import EXAMPLES
from tests.small_runs import typed

SHORT = (*QUIET, "hydra.run.dir=run", "train.steps=2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the example ``own_op``, whose op and model are in no installed package."""
    return shutil.copytree(EXAMPLES / "own_op", tmp_path / "own")


def begin(folder: Path, *more: str) -> Ended:
    return run_command(folder, "--plugin", "swish.py", "--config-dir", "conf", "model=swish_mlp", *SHORT, *more)


def test_workers_load_the_plugin_of_the_master_and_a_run_is_resumed_only_with_it(folder: Path) -> None:
    command = begin(folder)
    assert command.code == 0, command.errors
    summary = summary_of(folder / "run")
    assert summary.workers == 2
    assert summary.plugins == {str(folder / "swish.py"): locate(str(folder / "swish.py")).sha256}
    without = run_command(folder, "resume=run", "train.steps=4")
    assert without.code == 2
    assert "model.name is 'swish_mlp': expected one of mlp" in without.errors
    assert "or a name from a --plugin" in without.errors
    succeed(folder, "--plugin", "swish.py", "resume=run", "train.steps=4")
    assert summary_of(folder / "run").steps == 4


def test_no_process_imports_a_file_of_the_folder_in_place_of_a_library(folder: Path) -> None:
    for library in ("json", "msgpack", "numpy", "random", "uuid", "zmq"):
        (folder / f"{library}.py").write_text("raise SystemExit(f'{__file__} was imported')\n")
    command = begin(folder, "-m", "hydra.sweep.dir=sweep", "seed=1", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert command.code == 0, command.errors
    assert summary_of(folder / "sweep" / "0").workers == 2


def test_a_file_that_changes_after_the_start_is_refused_by_the_workers(folder: Path) -> None:
    # When the master imports the file, the file appends a line to itself.
    with (folder / "swish.py").open("a") as file:
        file.write('\nwith open(__file__, "a") as own:\n    own.write("# changed\\n")\n')
    command = begin(folder)
    assert command.code == 7
    assert "exited with code 2 (ConfigError)" in command.errors
    assert "swish.py was changed: its SHA-256 is" in command.errors


@pytest.mark.slow
def test_a_run_is_not_resumed_with_a_changed_plugin(folder: Path) -> None:
    begin(folder)
    before = summary_of(folder / "run")
    with (folder / "swish.py").open("a") as file:
        file.write("# changed\n")
    resumed = run_command(folder, "--plugin", "swish.py", "resume=run", "train.steps=4")
    assert resumed.code == 2
    now = locate(str(folder / "swish.py")).sha256
    (was,) = before.plugins.values()
    assert f"plugin {folder / 'swish.py'} was changed: its SHA-256 was {was} and is now {now}." in resumed.errors
    assert summary_of(folder / "run") == before
    again = run_command(folder, "--plugin", "swish.py", "rerun", "run", "--output", "second")
    assert f"plugin {folder / 'swish.py'} was changed: its SHA-256 was {was}" in again.errors


@pytest.mark.slow
def test_a_run_reports_a_plugin_that_moved_or_is_not_given(folder: Path) -> None:
    """Each command runs in a separate process, because it prints its warnings before the log of the run is open."""
    succeed(folder, "--plugin", "swish.py", "model=mlp", *SHORT)
    (folder / "run" / "summary.json").unlink()  # as after a kill
    shutil.copy(folder / "swish.py", folder / "elsewhere.py")
    log = folder / "run" / "run.log"
    for arguments, expected in (
        (
            ("--plugin", "elsewhere.py", "resume=run", "train.steps=3"),
            f"plugin {folder / 'swish.py'} is now {folder / 'elsewhere.py'}",
        ),
        (("resume=run", "train.steps=4"), f"plugin {folder / 'elsewhere.py'} of the run is not loaded"),
    ):
        command = Command(folder, *arguments)
        assert command.finish() == 0, command.errors
        assert expected in command.errors
        assert expected in log.read_text()
    assert summary_of(folder / "run").steps == 4
    assert read_plugins(folder / "run") == {}, "the newest start had no plugin"


MODULE = '''
from dataclasses import dataclass

from runner.models import Mlp
from runner.plugin import Plugin


@dataclass
class Mine(Mlp):
    """A network that a package brings."""

    name: str = "mine"


plugin = Plugin(models={"mine": Mine})
'''
INFO = "mine-1.0.dist-info"
FILES = {
    "mine_package/__init__.py": "",
    "mine_package/parts.py": MODULE,
    f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/entry_points.txt": f"[{GROUP}]\nmine = mine_package.parts:plugin\n",
}


@pytest.fixture(scope="module")
def package_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which pip has installed the package ``mine``, from a wheel, which needs no build."""
    folder = tmp_path_factory.mktemp("site")
    wheel = folder / "mine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
        archive.writestr(f"{INFO}/RECORD", "".join(f"{name},,\n" for name in [*FILES, f"{INFO}/RECORD"]))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", folder / "site", wheel], check=True)
    return folder / "site"


def run_beside(package_site: Path, folder: Path, *arguments: str) -> Command:
    """Run ``runner`` to its end with ``package_site`` on the search path of Python."""
    places = [str(package_site), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = Command(folder, *arguments, environment={"PYTHONPATH": os.pathsep.join(places)})
    assert command.finish() == 0, command.errors
    return command


@pytest.mark.slow
def test_a_run_trains_the_model_of_an_installed_package(package_site: Path, tmp_path: Path) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mine.yaml").write_text('defaults: ["/schema/model/mine@_here_"]\nhidden: [8]\n')
    chosen = ("--config-dir", "conf", "model=mine", "parallelism=sync_data", "parallelism.workers=2")
    short = typed("tracking=none tracking.pictures=false hydra.run.dir=run train.steps=2 cluster.threads_per_worker=1")
    assert "weights_sha256" in run_beside(package_site, tmp_path, *chosen, *short).output
    summary = summary_of(tmp_path / "run")
    assert (summary.steps, summary.workers, list(summary.plugins)) == (2, 2, ["mine_package.parts"])
    run_beside(package_site, tmp_path, "resume=run", "train.steps=3")
    assert summary_of(tmp_path / "run").steps == 3
    lines = run_beside(package_site, tmp_path, "list", "models").output.splitlines()
    assert ["mine", "A network that a package brings."] in [line.split(maxsplit=1) for line in lines]


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the installed wheel of this project. The dependencies come from this environment."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder / "dist", ROOT], check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True)
    return folder / "site"


@pytest.mark.slow
def test_the_wheel_contains_the_configuration_and_the_gpu_kernel_sources(site: Path) -> None:
    assert (site / "runner" / "conf" / "config.yaml").is_file()
    assert (site / "runner" / "commands" / "templates" / "model.py.txt").is_file()
    assert not (site / "tests").exists()
    place = Path("runner", "kernels", "gpu", "source")
    there, installed = ({path.name for path in (root / place).glob("*.cu*")} for root in (ROOT, site))
    assert "common.cuh" in there
    assert installed == there


@pytest.mark.slow
def test_the_installed_script_trains_from_any_folder(site: Path, tmp_path: Path) -> None:
    script, environment = (sys.executable, str(site / "bin" / "runner")), {"PYTHONPATH": str(site)}
    done = Command(tmp_path, *SHORT, executable=script, environment=environment)
    assert done.finish() == 0, done.errors
    assert "weights_sha256" in done.output
    assert (tmp_path / "run" / "checkpoints" / "step-2").is_dir()
    probe = Command(
        tmp_path, "-c", "import runner; print(runner.__file__)", executable=script[:1], environment=environment
    )
    assert probe.finish() == 0, probe.errors
    assert probe.output.startswith(str(site)), "the installed package is imported"
