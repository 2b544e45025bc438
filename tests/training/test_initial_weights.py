"""Initial weights of another run: matching weights, the others with the reason, and the run that uses them."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoint import load
from runner.config.configuration import load_stored
from runner.errors import CheckpointError, ConfigError
from runner.records.summary import Summary
from runner.training.initial_weights import InitialWeights, initial_weights
from runner.training.run import run
from tests.small_runs import small_config

NORMALISED = ("model=resnet_cifar", "model.depth=8", "train.batch_size=4", "data.augment.crop_padding=0")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of three steps with momentum."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    run(small_config(), folder, overrides=[])
    return folder


def taken(source: Path, *overrides: str) -> InitialWeights:
    weights = initial_weights(small_config(f"init_from={source}", *overrides))
    assert weights is not None
    return weights


def train(folder: Path, *overrides: str, resume: bool = False) -> Summary:
    return run(small_config(*overrides), folder, overrides=[], resume=resume)


def test_nothing_is_taken_unless_it_is_asked_for() -> None:
    assert initial_weights(small_config()) is None


def test_weights_are_taken_and_slots_are_left(trained: Path) -> None:
    stored = load(trained / "checkpoints" / "step-3").variables
    assert any(name.endswith("/velocity") for name in stored)
    weights = taken(trained, "optimizer=adam")
    assert list(weights.values) == ["fc1/weights", "fc1/bias", "fc2/weights", "fc2/bias"]
    assert weights.left == {}
    for name, value in weights.values.items():
        np.testing.assert_array_equal(value, stored[name], strict=True)


def test_weights_that_do_not_fit_are_left_and_reported(trained: Path) -> None:
    weights = taken(trained, "model.hidden=[8,8]", "init_exclude=[fc1/b*]")
    assert list(weights.values) == ["fc1/weights"]
    assert weights.left == {
        "fc1/bias": "init_exclude matches it (fc1/b*)",
        "fc2/weights": "its shape is (8, 8), in the checkpoint (8, 10)",
        "fc2/bias": "its shape is (8,), in the checkpoint (10,)",
        "fc3/weights": "it is not in the checkpoint",
        "fc3/bias": "it is not in the checkpoint",
    }
    assert weights.report().splitlines() == [
        f"weights from {trained}/checkpoints/step-3: 1 taken, 5 left at their initial value",
        "  fc1/weights: taken",
        *(f"  {name}: left, {why}" for name, why in weights.left.items()),
    ]


def test_only_matching_weights_are_taken(trained: Path) -> None:
    weights = taken(trained, "init_include=[fc1/*,*/bias]")
    assert list(weights.values) == ["fc1/weights", "fc1/bias", "fc2/bias"]
    assert weights.left == {"fc2/weights": "init_include does not match it"}


def test_floats_of_another_width_are_converted(trained: Path) -> None:
    weights = taken(trained, "precision=float64")
    assert {value.dtype.name for value in weights.values.values()} == {"float64"}


@pytest.mark.parametrize("key", ["init_include", "init_exclude"])
def test_a_pattern_that_names_nothing_is_refused(trained: Path, key: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"{key}=\['fc1/\*', 'conv\*'\]: conv\* matches no weight; the network has fc1/w"
    ):
        taken(trained, f"{key}=[fc1/*,conv*]")


def test_a_checkpoint_of_another_network_is_refused_before_anything_is_written(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"(?s)nothing matches.*conv1/weights: left, it is not in the checkpoint"):
        train(tmp_path / "run", "model=lenet", f"init_from={trained}", "init_include=[conv*]")
    assert not (tmp_path / "run").exists()


def test_a_run_begins_with_the_weights_of_another_without_its_momentum(trained: Path, tmp_path: Path) -> None:
    held = load(trained / "checkpoints" / "step-3").variables
    summary = train(tmp_path / "run", f"init_from={trained}", "optimizer.lr=1e-12", "train.steps=1")
    found = load(tmp_path / "run" / "checkpoints" / "step-1").variables
    for name in ("fc1/weights", "fc2/bias"):
        np.testing.assert_allclose(found[name], held[name], rtol=0, atol=1e-9)
        assert not np.allclose(found[f"{name}/velocity"], held[f"{name}/velocity"])
    assert summary.init_from == str(trained / "checkpoints" / "step-3")
    assert (summary.init_taken, summary.init_left) == (["fc1/weights", "fc1/bias", "fc2/weights", "fc2/bias"], {})
    assert "4 taken, 0 left" in (tmp_path / "run" / "run.log").read_text()


def test_weights_that_are_left_have_their_usual_initial_value(trained: Path, tmp_path: Path) -> None:
    still = ("optimizer.lr=1e-12", "train.steps=1")
    train(tmp_path / "plain", *still)
    train(tmp_path / "run", f"init_from={trained}", "init_include=[fc1/*]", *still)
    plain, found = (load(tmp_path / name / "checkpoints" / "step-1").variables for name in ("plain", "run"))
    np.testing.assert_allclose(found["fc2/weights"], plain["fc2/weights"], rtol=0, atol=1e-9)
    assert not np.allclose(found["fc1/weights"], plain["fc1/weights"])


def test_a_resumed_run_keeps_its_weights(trained: Path, tmp_path: Path) -> None:
    begun = (f"init_from={trained}", "schedule=constant")
    whole = train(tmp_path / "whole", *begun, "train.steps=4")
    train(tmp_path / "run", *begun, "train.steps=2")
    resumed = train(tmp_path / "run", *begun, "train.steps=4", resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.init_from == ""


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_with_the_same_weights(
    trained: Path, tmp_path: Path
) -> None:
    """Although the run that they are from has gone on."""
    source = shutil.copytree(trained, tmp_path / "source")
    uninterrupted = train(tmp_path / "run", f"init_from={source}")
    assert load_stored(tmp_path / "run" / "config.yaml").init_from == str(source / "checkpoints" / "step-3")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-3")
    train(source, "train.steps=5", resume=True)
    resumed = run(load_stored(tmp_path / "run" / "config.yaml"), tmp_path / "run", overrides=[], resume=True)
    assert resumed.weights_sha256 == uninterrupted.weights_sha256


def test_moving_averages_are_weights_too(tmp_path: Path) -> None:
    train(tmp_path / "source", *NORMALISED, "train.steps=1")
    averages = [name for name in taken(tmp_path / "source", *NORMALISED).values if "mean" in name]
    assert averages


@pytest.mark.parametrize("strategy", ["async_data", "hybrid"])
def test_every_strategy_can_begin_with_them(trained: Path, strategy: str) -> None:
    """Slots and copies that a strategy has of its own are no weights."""
    weights = taken(trained, f"parallelism={strategy}", "parallelism.workers=2")
    assert len(weights.values) == 4
