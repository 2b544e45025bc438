"""A model of an installed package, found by its entry point."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from runner.commands.plugins import GROUP
from tests.integration.command import Command, summary_of

pytestmark = pytest.mark.slow

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
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the package: from a wheel, so that no backend has to be fetched."""
    folder = tmp_path_factory.mktemp("site")
    wheel = folder / "mine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
        archive.writestr(f"{INFO}/RECORD", "".join(f"{name},,\n" for name in [*FILES, f"{INFO}/RECORD"]))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", folder / "site", wheel], check=True)
    return folder / "site"


def run_beside(site: Path, folder: Path, *arguments: str) -> Command:
    """Run ``runner`` to its end in an environment that has the package."""
    places = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = Command(folder, *arguments, environment={"PYTHONPATH": os.pathsep.join(places)})
    assert command.finish() == 0, command.errors
    return command


def test_a_run_trains_the_model_of_an_installed_package(site: Path, tmp_path: Path) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mine.yaml").write_text('defaults: ["/schema/model/mine@_here_"]\nhidden: [8]\n')
    chosen = ("--config-dir", "conf", "model=mine", "parallelism=sync_data", "parallelism.workers=2")
    short = (
        "tracking=none",
        "tracking.pictures=false",
        "hydra.run.dir=run",
        "train.steps=2",
        "cluster.threads_per_worker=1",
    )
    assert "weights_sha256" in run_beside(site, tmp_path, *chosen, *short).output
    summary = summary_of(tmp_path / "run")
    assert (summary.steps, summary.workers, list(summary.plugins)) == (2, 2, ["mine_package.parts"])
    run_beside(site, tmp_path, "resume=run", "train.steps=3")
    assert summary_of(tmp_path / "run").steps == 3


def test_the_model_of_an_installed_package_is_listed(site: Path, tmp_path: Path) -> None:
    lines = run_beside(site, tmp_path, "list", "models").output.splitlines()
    assert ["mine", "A network that a package brings."] in [line.split(maxsplit=1) for line in lines]
