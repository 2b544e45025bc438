"""A plugin can do all that a built-in strategy can: copies of two strategies build the same programs as plugins."""

import importlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from runner.engine.graph.serialize import to_document
from runner.optimizers import Adam
from runner.strategies import STRATEGIES, Strategy
from runner.strategies.base import TrainingFacts
from tests.integration.command import Command, summary_of
from tests.strategies.networks import NETWORKS, workload_of
from tests.strategies.test_async_data import VARIANTS
from tests.strategies.transplant import imports_of_private_modules, transplant

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "async_data": [{"workers": 3, "servers": 2, **settings} for settings in VARIANTS.values()],
    "model": [
        *({"concurrent_steps": 3, "pipeline": pipeline} for pipeline in ("same_gradients", "stale")),
        *({"workers": 3, "shard": {"fc*": way}} for way in ("column", "row")),
    ],
}


def copied(strategy: Strategy, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Strategy:
    """Return a copy of a strategy, with equal settings, whose modules are outside of the package ``runner``."""
    package = transplant(strategy.name, folder)
    monkeypatch.syspath_prepend(folder)
    schema = getattr(importlib.import_module(f"{package}.{strategy.name}"), type(strategy).__name__)
    own: Strategy = schema(**{each.name: getattr(strategy, each.name) for each in fields(strategy)})
    return own


def described(strategy: Strategy, network: str) -> list[Any]:
    """Return the program of a strategy and its statements about itself as plain data."""
    workload = workload_of(network, Adam(clip_norm=0.5))
    program = strategy.build(workload)
    parts = vars(program) | {"graph": to_document(program.graph), "step_driver": vars(program.step_driver)}
    facts = TrainingFacts(workload.optimizer, 2, 2, 2, True, "high16")
    said = (strategy.processes, strategy.race, strategy.layer_placement, list(strategy.faults(facts)))
    return [parts, type(program.step_driver).__name__, *said]


@pytest.mark.parametrize(("strategy", "settings"), [(name, each) for name in SETTINGS for each in SETTINGS[name]])
def test_a_strategy_outside_the_package_builds_the_programs_of_the_built_in_one(
    strategy: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = STRATEGIES[strategy](**settings)
    copy = copied(own, tmp_path, monkeypatch)
    assert not type(copy).__module__.startswith("runner")
    networks = NETWORKS if settings == {"workers": 3, "servers": 2} else ["convolutional"]
    for network in networks:
        assert described(copy, network) == described(own, network)


@pytest.mark.parametrize("strategy", sorted(SETTINGS))
def test_a_strategy_outside_the_package_imports_only_the_public_contract(strategy: str, tmp_path: Path) -> None:
    assert imports_of_private_modules(tmp_path, transplant(strategy, tmp_path)) == []


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
