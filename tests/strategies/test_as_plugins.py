"""A plugin can do everything that a built-in strategy can: two built-in strategies pass their tests as plugins."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.command import Command, summary_of
from tests.strategies.transplant import imports_of_private_modules, transplant

HERE = Path(__file__).parent
LAWS = {
    "async_data": ["test_base.py", "test_async_data.py", "downpour"],
    "model": ["test_base.py", "test_model.py", "test_large_layers.py", "sharded/test_sharded_model.py"],
}


@pytest.mark.parametrize("strategy", sorted(LAWS))
def test_a_strategy_outside_the_package_imports_only_the_public_contract(strategy: str, tmp_path: Path) -> None:
    assert imports_of_private_modules(tmp_path, transplant(strategy, tmp_path)) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("strategy", sorted(LAWS))
def test_a_strategy_passes_its_tests_as_a_plugin(strategy: str, tmp_path: Path) -> None:
    transplant(strategy, tmp_path)
    laws = [str(HERE / file) for file in LAWS[strategy]]
    options = ["-p", "tests.strategies.transplant", f"--transplanted={tmp_path}", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *laws]
    ended = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "settings"),
    [("async_data", ["parallelism.virtual_time=true"]), ("model", ["parallelism.shard={fc1: column, fc2: row}"])],
)
def test_a_plugin_gives_the_weights_of_the_built_in_strategy(
    strategy: str, settings: list[str], tmp_path: Path
) -> None:
    package = transplant(strategy, tmp_path)
    options = tmp_path / "conf" / "parallelism" / f"{package}.yaml"
    options.parent.mkdir(parents=True)
    options.write_text(f'defaults: ["/schema/parallelism/{package}@_here_"]\nworkers: 2\n')
    plugin = ["--plugin", f"{package}.plugin", "--config-dir", "conf"]
    weights = []
    for name, added in ((strategy, []), (package, plugin)):
        given = [*added, f"parallelism={name}", *settings, "train.steps=4", "tracking=none", f"hydra.run.dir={name}"]
        command = Command(tmp_path, *given, environment={"PYTHONPATH": str(tmp_path)})
        assert command.finish() == 0, command.errors
        weights.append(summary_of(tmp_path / name).weights_sha256)
    assert weights[0] == weights[1]
