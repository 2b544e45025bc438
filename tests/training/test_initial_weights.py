"""Initial weights of another run: matching weights, the others with the reason, and the run that uses them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoint import load
from runner.config.configuration import load_stored
from runner.errors import CheckpointError, ConfigError
from runner.training.initial_weights import InitialWeights, initial_weights
from runner.training.run import run
from tests.small_runs import small_config, train

NORMALISED = ("model=resnet_cifar", "model.depth=8", "train.batch_size=4", "data.augment.crop_padding=0")
NAMES = ["fc1/weights", "fc1/bias", "fc2/weights", "fc2/bias"]


@pytest.fixture
def source(trained: Callable[..., Path]) -> Path:
    """The directory of a run of three steps with momentum; only read."""
    return trained()


def taken(source: Path, *overrides: str) -> InitialWeights:
    weights = initial_weights(small_config(f"init_from={source}", *overrides))
    assert weights is not None
    return weights


@pytest.mark.parametrize("settings", [("optimizer=adam",), ("parallelism=async_data",), ("parallelism=hybrid",)])
def test_weights_are_taken_and_slots_and_copies_of_strategies_are_left(source: Path, settings: tuple[str, ...]) -> None:
    assert initial_weights(small_config()) is None
    stored = load(source / "checkpoints" / "step-3").variables
    assert any(name.endswith("/velocity") for name in stored)
    weights = taken(source, *settings)
    assert (list(weights.values), weights.left) == (NAMES, {})
    for name, value in weights.values.items():
        np.testing.assert_array_equal(value, stored[name], strict=True)


def test_weights_that_do_not_fit_are_left_and_reported(source: Path) -> None:
    weights = taken(source, "model.hidden=[8,8]", "init_exclude=[fc1/b*]")
    assert list(weights.values) == ["fc1/weights"]
    assert weights.left == {
        "fc1/bias": "init_exclude matches it (fc1/b*)",
        "fc2/weights": "its shape is (8, 8), in the checkpoint (8, 10)",
        "fc2/bias": "its shape is (8,), in the checkpoint (10,)",
        "fc3/weights": "it is not in the checkpoint",
        "fc3/bias": "it is not in the checkpoint",
    }
    assert weights.report().splitlines() == [
        f"weights from {source}/checkpoints/step-3: 1 taken, 5 left at their initial value",
        "  fc1/weights: taken",
        *(f"  {name}: left, {why}" for name, why in weights.left.items()),
    ]


def test_only_matching_weights_are_taken_and_converted_to_floats_of_another_width(source: Path) -> None:
    weights = taken(source, "init_include=[fc1/*,*/bias]", "precision=float64")
    assert list(weights.values) == ["fc1/weights", "fc1/bias", "fc2/bias"]
    assert weights.left == {"fc2/weights": "init_include does not match it"}
    assert {value.dtype.name for value in weights.values.values()} == {"float64"}


@pytest.mark.parametrize("key", ["init_include", "init_exclude"])
def test_a_pattern_that_names_nothing_is_refused(source: Path, key: str) -> None:
    expected = rf"{key}=\['fc1/\*', 'conv\*'\]: conv\* matches no weight; the network has fc1/w"
    with pytest.raises(ConfigError, match=expected):
        taken(source, f"{key}=[fc1/*,conv*]")


def test_a_checkpoint_of_another_network_is_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"(?s)nothing matches.*conv1/weights: left, it is not in the checkpoint"):
        train(tmp_path / "run", "model=lenet", f"init_from={source}", "init_include=[conv*]")
    assert not (tmp_path / "run").exists()


STILL = ("optimizer.lr=1e-12", "train.steps=1")


def test_a_run_begins_with_the_weights_of_another_without_its_momentum(source: Path, tmp_path: Path) -> None:
    held = load(source / "checkpoints" / "step-3").variables
    summary = train(tmp_path / "run", f"init_from={source}", *STILL)
    found = load(tmp_path / "run" / "checkpoints" / "step-1").variables
    for name in ("fc1/weights", "fc2/bias"):
        np.testing.assert_allclose(found[name], held[name], rtol=0, atol=1e-9)
        assert not np.allclose(found[f"{name}/velocity"], held[f"{name}/velocity"])
    assert summary.init_from == str(source / "checkpoints" / "step-3")
    assert (summary.init_taken, summary.init_left) == (NAMES, {})
    assert "4 taken, 0 left" in (tmp_path / "run" / "run.log").read_text()


def test_weights_that_are_left_have_their_usual_initial_value(source: Path, tmp_path: Path) -> None:
    train(tmp_path / "plain", *STILL)
    train(tmp_path / "run", f"init_from={source}", "init_include=[fc1/*]", *STILL)
    plain, found = (load(tmp_path / name / "checkpoints" / "step-1").variables for name in ("plain", "run"))
    np.testing.assert_allclose(found["fc2/weights"], plain["fc2/weights"], rtol=0, atol=1e-9)
    assert not np.allclose(found["fc1/weights"], plain["fc1/weights"])


def test_a_resumed_run_keeps_its_weights(source: Path, tmp_path: Path) -> None:
    begun = (f"init_from={source}", "schedule=constant")
    whole = train(tmp_path / "whole", *begun, "train.steps=4")
    train(tmp_path / "run", *begun, "train.steps=2")
    resumed = train(tmp_path / "run", *begun, "train.steps=4", resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.init_from == ""


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_with_the_same_weights(
    source: Path, tmp_path: Path
) -> None:
    """The run from which they come has more checkpoints by then."""
    source = shutil.copytree(source, tmp_path / "source")
    uninterrupted = train(tmp_path / "run", f"init_from={source}")
    assert load_stored(tmp_path / "run" / "config.yaml").init_from == str(source / "checkpoints" / "step-3")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-3")
    train(source, "train.steps=5", resume=True)
    resumed = run(load_stored(tmp_path / "run" / "config.yaml"), tmp_path / "run", overrides=[], resume=True)
    assert resumed.weights_sha256 == uninterrupted.weights_sha256


def test_moving_averages_are_weights_too(tmp_path: Path) -> None:
    train(tmp_path / "source", *NORMALISED, "train.steps=1")
    assert any("mean" in name for name in taken(tmp_path / "source", *NORMALISED).values)
