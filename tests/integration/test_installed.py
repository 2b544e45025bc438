"""The wheel, installed elsewhere: the script works from any folder and finds its configuration."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds nothing but the installed wheel; its dependencies come from this environment."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder / "dist", ROOT], check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True)
    return folder / "site"


def run_installed(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, site / "bin" / "runner", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_carries_its_configuration(site: Path) -> None:
    assert (site / "runner" / "conf" / "config.yaml").is_file()
    assert (site / "runner" / "commands" / "templates" / "model.py.txt").is_file()
    assert not (site / "tests").exists()


def test_the_wheel_carries_the_sources_of_the_kernels_for_gpus(site: Path) -> None:
    place = Path("runner", "kernels", "gpu", "source")
    there, installed = ({path.name for path in (root / place).glob("*.cu*")} for root in (ROOT, site))
    assert "common.cuh" in there
    assert installed == there


def test_the_installed_script_trains_from_any_folder(site: Path, tmp_path: Path) -> None:
    arguments = ("tracking=none", "tracking.pictures=false", "train.steps=2", "hydra.run.dir=run")
    done = run_installed(site, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert "weights_sha256" in done.stdout
    assert (tmp_path / "run" / "checkpoints" / "step-2").is_dir()


def test_the_installed_script_is_the_one_that_runs(site: Path, tmp_path: Path) -> None:
    probe = [sys.executable, "-c", "import runner; print(runner.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    said = subprocess.run(probe, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.startswith(str(site))
