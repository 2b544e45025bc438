"""Training on records: under every strategy, and after a resume, the weights are those of training on arrays."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.checkpoint import newest
from runner.cli import main
from runner.data import Digits
from runner.data.convert import convert
from runner.data.preprocessing import ImagePreprocessing
from runner.data.settings import load_limited
from runner.errors import ConfigError
from runner.training.inference import answers, one_device, pipeline_as_trained, score_views
from tests.small_runs import small_config, train, typed

STRATEGIES = {
    "single": "train.microbatches=2",
    "sync_data": "parallelism.workers=3",
    "ring": "parallelism=sync_data parallelism.workers=2 parallelism.combine=ring_all_reduce",
    "model": "parallelism.workers=2",
    "hybrid": "parallelism.workers=2",
    "async_data": "parallelism.workers=2 parallelism.virtual_time=true",
    "sandblaster": "parallelism.workers=2 optimizer=lbfgs train.batch_size=200",
}
AUGMENTED = typed(
    "schedule=constant data.augment.crop_padding=1 data.val_fraction=0.1 train.steps=4 checkpoint.every_steps=2"
)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return the overrides that choose the records of the digits."""
    folder = tmp_path_factory.mktemp("digits")
    convert(Digits(), folder / "records", (5, 2), report=lambda line: None)
    return "data=tfrecord", f"data.path={folder / 'records'}", f"data.cache_dir={folder / 'cache'}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "sandblaster" else []) for name in STRATEGIES]
)
def test_every_strategy_has_the_weights_of_runs_on_arrays(name: str, records: tuple[str, ...], tmp_path: Path) -> None:
    chosen = (*typed(STRATEGIES[name]), *AUGMENTED)
    if not STRATEGIES[name].startswith("parallelism="):
        chosen = (f"parallelism={name}", *chosen)
    if name not in ("single", "sandblaster"):
        chosen = (*chosen, "cluster.one_process=true")
    arrays = train(tmp_path / "arrays", *chosen)
    streamed = train(tmp_path / "records", *chosen, *records, "data.threads=2", "data.prefetch=3")
    assert streamed.weights_sha256 == arrays.weights_sha256
    assert streamed.final["test/loss"] == arrays.final["test/loss"]


def test_a_resumed_run_on_records_has_the_weights_of_a_whole_run(records: tuple[str, ...], tmp_path: Path) -> None:
    windowed = (*AUGMENTED, *records, "data.shuffle.window=50", "data.shuffle.interleave=2")
    whole = train(tmp_path / "whole", *windowed, "train.steps=9")
    train(tmp_path / "run", *windowed, "train.steps=5")
    resumed = train(tmp_path / "run", *windowed, "train.steps=9", "data.threads=2", resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.weights_sha256 != train(tmp_path / "full", *AUGMENTED, *records, "train.steps=9").weights_sha256


def test_ten_views_are_scored_by_their_mean_probabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in range(3):
            (tmp_path / "images" / split / str(label)).mkdir(parents=True)
            for number in range(5):
                pixels = rng.integers(0, 256, (10, 12, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / split / str(label) / f"{number}.png")
    chosen = typed(
        "data=image_folder data.path=images data.stream=true data.size=8 data.preprocessing.name=krizhevsky "
        "data.preprocessing.sides=[10,10] data.preprocessing.evaluated_side=10 train.eval_batch_size=4 train.steps=30"
    )
    train(tmp_path / "run", *chosen)
    assert main(["eval", "run", "--ten-views", "--output", "out.json"]) == 0
    found = json.loads((tmp_path / "out.json").read_text())["results"]

    config = small_config(*chosen)
    data = load_limited(config.data)
    taken = data.test.take(np.arange(15))
    assert data.preprocessing is not None
    device, checkpoint = one_device(config, 1), newest(tmp_path / "run" / "checkpoints")
    whole_split = replace(config, train=replace(config.train, batch_size=15))
    undistorted = pipeline_as_trained(config.data, data.normalisation, whole_split)
    first, second = ({x.tobytes() for x in undistorted.read("train", step, 0, 15)["x"]} for step in (0, 1))
    assert first == second
    means = []
    for image in taken["x"]:
        # The shorter side is 10 already, so that nothing is resized.
        whole = ImagePreprocessing(replace(data.preprocessing.recipe, size=10, evaluated_side=10)).evaluate(image)
        places = [(0, 0), (0, 2), (2, 0), (2, 2), (1, 1)]
        views = np.stack([whole[:, top : top + 8, left : left + 8] for top, left in places])
        inputs = data.normalisation.apply(np.concatenate([views, views[..., ::-1]]), np.dtype("float32"))
        means.append(answers(device, checkpoint, inputs).mean(axis=0))
    expected = float((np.argmax(means, axis=1) == taken["y"]).mean())
    assert found["test/accuracy"] == pytest.approx(expected)
    assert found["test/error"] == pytest.approx(1 - found["test/accuracy"])
    assert found["test/top5_accuracy"] == 1.0
    double = one_device(small_config(*chosen, "precision=float64"), 1)
    scores = score_views(double, checkpoint, config.data, data.normalisation)["test"]
    assert scores.metrics["accuracy"] == pytest.approx(expected)
    ignoring = one_device(small_config(*chosen, "task.ignored_label=1"), 1)
    scores = score_views(ignoring, checkpoint, config.data, data.normalisation)["test"]
    kept = taken["y"] != 1
    right = np.argmax(means, axis=1)[kept] == taken["y"][kept]
    assert (scores.examples, scores.metrics["accuracy"]) == (10, pytest.approx(right.mean()))
    ignoring = one_device(small_config(*chosen, f"task.ignored_label={taken['y'][0]}"), 1)
    scores = score_views(ignoring, checkpoint, replace(config.data, test_limit=1), data.normalisation)["test"]
    assert (scores.examples, math.isnan(scores.metrics["error"])) == (0, True)
    monkeypatch.setattr(type(config.task), "answers", lambda task, outputs: np.full_like(outputs, np.nan))
    broken = score_views(device, checkpoint, config.data, data.normalisation)["test"].metrics
    assert (broken["accuracy"], broken["top5_accuracy"]) == (0.0, 0.0)
    numbers = one_device(small_config(*chosen, "task=regression"), 1)
    for unfit, settings in ((device, small_config().data), (numbers, config.data)):
        with pytest.raises(ConfigError, match="10 views need classes and images that are decoded"):
            score_views(unfit, checkpoint, settings, data.normalisation)
