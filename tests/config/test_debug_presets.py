"""``+debug=...``: presets that combine with any experiment and yield to the command line."""

from pathlib import Path

import pytest

from runner.config.conf_dir import conf_dir
from runner.config.hydra_app import compose
from runner.config.schema import Config
from runner.data.settings import limited_facts
from runner.training.build import build
from runner.training.run import run
from tests.small_runs import small_config

SANDBLASTER = ("parallelism=sandblaster", "optimizer=lbfgs", "schedule=constant", "train.batch_size=64")
STRATEGIES = [
    ("parallelism=single",),
    ("parallelism=sync_data",),
    ("parallelism=sync_data", "parallelism.combine=parameter_server", "parallelism.backup_workers=1"),
    ("parallelism=async_data",),
    ("parallelism=downpour",),
    ("parallelism=model",),
    ("parallelism=hybrid",),
    SANDBLASTER,
]


def composed(*overrides: str) -> Config:
    """The checked configuration."""
    return compose(list(overrides)).config()


def test_fast_is_a_few_steps_with_checks() -> None:
    config = composed("+debug=fast", "experiment=mnist_lenet")
    assert (config.train.steps, config.train.epochs, config.debug.check_finite) == (25, None, True)
    assert (limited_facts(config.data).train_examples, limited_facts(config.data).test_examples) == (512, 128)
    assert config.model.name == "lenet"


def test_overfit_is_a_few_examples_as_they_are() -> None:
    config = composed("+debug=overfit", "experiment=cifar10_convnet")
    assert limited_facts(config.data).train_examples == 32
    assert not config.data.augment.active


def test_profile_records_a_timeline_within_its_steps() -> None:
    config = composed("+debug=profile")
    assert config.trace
    assert config.train.steps is not None
    assert config.trace_skip + config.trace_steps < config.train.steps


@pytest.mark.parametrize("preset", ["fast", "overfit", "profile"])
def test_the_command_line_has_the_last_word(preset: str) -> None:
    config = composed(f"+debug={preset}", "train.epochs=2", "data.test_limit=null", "debug.check_finite=false")
    assert (config.train.epochs, config.train.steps) == (2.0, None)
    assert config.data.test_limit is None
    assert not config.debug.check_finite


@pytest.mark.parametrize("overrides", STRATEGIES, ids=lambda overrides: overrides[0])
def test_fast_and_overfit_can_be_built_for_every_strategy(overrides: tuple[str, ...]) -> None:
    for preset in ("fast", "overfit"):
        experiment = build(small_config("train.steps=25", f"+debug={preset}", *overrides))
        assert experiment.total_steps == 25


@pytest.mark.parametrize("overrides", STRATEGIES, ids=lambda overrides: overrides[0])
def test_profile_can_be_built_for_every_strategy(overrides: tuple[str, ...]) -> None:
    experiment = build(small_config("train.steps=25", "+debug=profile", *overrides))
    assert (experiment.config.trace, experiment.config.trace_steps) == (True, 5)


@pytest.mark.parametrize("experiment", sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml")))
@pytest.mark.parametrize(("preset", "steps"), [("fast", 25), ("overfit", 300), ("profile", 30)])
def test_presets_can_be_built_for_every_experiment(preset: str, steps: int, experiment: str) -> None:
    config = composed(f"+debug={preset}", f"experiment={experiment}", "cluster.threads_per_worker=1")
    assert build(config).total_steps == steps


def test_overfit_learns_its_examples_by_heart(tmp_path: Path) -> None:
    config = small_config("+debug=overfit", "model.hidden=[64]", "train.steps=150")
    summary = run(config, tmp_path / "run", overrides=())
    assert summary.final["train/loss"] < 0.1
    assert summary.final["train/accuracy"] == 1.0
