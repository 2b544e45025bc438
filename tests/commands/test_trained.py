"""``runner eval`` and ``runner predict``, with a run directory and with a checkpoint."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from PIL import Image

from runner.checkpoint import find, load
from runner.cli import main
from runner.commands.predict import probability_text
from runner.data import Digits
from runner.records.summary import Summary
from runner.training.evaluation import Scores
from runner.training.run import run
from tests.data.own_data import small_arrays, write_arrays, write_images
from tests.refusal import Capture
from tests.small_runs import small_config

SETTINGS = ("train.steps=12", "train.eval_every=3", "data.val_fraction=0.2", "optimizer.lr=0.05")
TEST = Digits().load().test


@pytest.fixture
def stored(trained: Callable[..., Path], folder: Path) -> Path:
    """Return a copy, in the working directory, of a short run with a validation split and a best checkpoint."""
    return Path(shutil.copytree(trained(*SETTINGS), folder / "run"))


def evaluated(*arguments: str, output: str = "out.json") -> Any:
    """Run ``runner eval`` and return its JSON output."""
    assert main(["eval", *arguments, "--output", output]) == 0
    return json.loads(Path(output).read_text())


def predicted(*arguments: str) -> Any:
    """Run ``runner predict run`` and return the rows of its JSON output."""
    assert main(["predict", "run", *arguments, "--output", "out.json"]) == 0
    return json.loads(Path("out.json").read_text())


def refused(capsys: Capture, *arguments: str) -> str:
    """Run a command, and return its exit code followed by its error output."""
    code = main(list(arguments))
    return f"{code} {capsys.readouterr().err}"


def test_an_evaluation_equals_that_of_the_run(stored: Path, capsys: Capture) -> None:
    assert main(["eval", "run", "--which", "newest"]) == 0
    path = stored / "eval-step-12-digits.json"
    found, summary = json.loads(path.read_text()), Summary.read(stored / "summary.json")
    expected = {name: summary.final[name] for name in ("test/loss", "test/accuracy", "val/loss", "val/accuracy")}
    assert found["results"] == pytest.approx(expected, rel=1e-5)
    assert found["examples"] == {"test": 359, "val": 288}
    assert np.sum(found["confusion"]["test"]) == 359
    assert found["checkpoint"] == str(stored / "checkpoints" / "step-12")
    printed = capsys.readouterr().out
    assert f"test/loss      {expected['test/loss']:.4g}\n" in printed
    assert f"test/accuracy  {expected['test/accuracy']:.4g}" in printed
    assert str(path) in printed


def test_a_run_on_limited_data_is_evaluated_on_limited_data(folder: Path) -> None:
    limits = ("data.train_limit=200", "data.test_limit=50", "data.val_fraction=0.3")
    summary = run(small_config(*limits, "train.steps=20"), folder / "run", overrides=[])
    found = evaluated("run", "--which", "newest")
    assert found["examples"] == {"test": 50, "val": 60}
    assert found["results"] == pytest.approx({name: summary.final[name] for name in found["results"]}, rel=1e-5)


def test_the_best_checkpoint_is_evaluated_unless_another_is_named(stored: Path) -> None:
    best = Summary.read(stored / "summary.json")
    assert best.best_checkpoint is not None
    assert evaluated("run")["checkpoint"] == str(stored / best.best_checkpoint)
    assert evaluated("run")["results"]["val/accuracy"] == pytest.approx(best.best_value)
    assert evaluated("run/checkpoints/step-12")["checkpoint"].endswith("/run/checkpoints/step-12")


def test_a_run_that_recorded_its_best_network_is_evaluated_on_data_without_validation(stored: Path) -> None:
    plain = yaml.safe_load((stored / "config.yaml").read_text())
    plain["tracking"] = {"name": "mlflow", "log_model": "best"}
    (stored / "config.yaml").write_text(yaml.safe_dump(plain))
    assert evaluated("run", "data=digits")["examples"] == {"test": 359}


def test_every_evaluation_has_a_separate_file_with_its_settings(stored: Path) -> None:
    for limit in ("", "5", "6", "5"):
        assert main(["eval", "run", *([f"data.test_limit={limit}"] if limit else [])]) == 0
    found = [json.loads(path.read_text()) for path in stored.glob("eval-*-digits*.json")]
    limits = [(each["examples"]["test"], each["data_settings"]["test_limit"] or 0) for each in found]
    assert sorted(limits) == [(5, 5), (6, 6), (359, 0)]


def test_batches_have_the_requested_size(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = Mock(return_value=Scores({"loss": 0.0, "accuracy": 0.0}, 0))
    monkeypatch.setattr("runner.training.inference.evaluate", evaluate)
    evaluated("run", "train.eval_batch_size=50")
    assert [call.kwargs["batches"] for call in evaluate.call_args_list] == [8, 6]


def test_another_dataset_of_the_same_kind_is_normalised_as_in_training(folder: Path) -> None:
    path = write_arrays(folder / "mine.npz", x_train=np.full((8, 6, 5), 7, np.uint8))
    trained_on = ["data=synthetic", "data.shape=[1,6,5]", "data.classes=3", "data.examples=8", "data.test_examples=4"]
    run(small_config(*trained_on, "train.batch_size=4"), folder / "run", overrides=[])
    found = evaluated("run", "data=arrays", f"data.path={path}", "data.mean=[0.1]", "data.std=[9.0]")
    assert (found["data"], found["examples"]) == ("arrays", {"test": 4})
    # The inputs are normalised with the mean and standard deviation of the synthetic images.
    with np.load(path) as arrays:
        inputs = (arrays["x_test"].reshape(4, 30) / 255 - 0.5) / 0.204
        assert found["results"]["test/loss"] == pytest.approx(cross_entropy(inputs, arrays["y_test"]), rel=1e-5)


def test_another_dataset_can_be_named_by_a_yaml_file_of_the_user(stored: Path, folder: Path, capsys: Capture) -> None:
    (folder / "conf" / "data").mkdir(parents=True)
    mine = folder / "conf" / "data" / "mine.yaml"
    mine.write_text('defaults: ["/schema/data/digits@_here_"]\ntest_limit: 7\n')
    assert "data=mine: no such option; for an option in your own" in refused(capsys, "eval", "run", "data=mine")
    assert evaluated("run", "data=mine", "--config-dir", "conf")["examples"] == {"test": 7}
    assert evaluated("run", "-cd", "conf", "data=mine", "data.test_limit=6")["examples"] == {"test": 6}
    shutil.copytree("conf", "other")
    for place in ("conf", "other", "conf"):
        assert main(["eval", "run", "data=mine", "--config-dir", place]) == 0
    assert len(list(stored.glob("eval-*-digits-*.json"))) == 2


def test_pixels_of_another_range_are_scaled_to_the_range_of_training(folder: Path) -> None:
    run(small_config(), folder / "run", overrides=[])
    same = ["data=synthetic", "data.shape=[1,8,8]", "data.classes=10", "data.test_examples=50"]
    found = evaluated("run", *same)
    # Pixels of digits are divided by 16, their largest value; pixels of synthetic images are divided by 255.
    config: Any = small_config(*same)
    test = config.data.load().test
    expected = cross_entropy(test["x"].reshape(50, 64) / 255, test["y"])
    assert found["results"]["test/loss"] == pytest.approx(expected, rel=1e-5)


def cross_entropy(inputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the cross-entropy of the network that is stored in the directory ``run``, computed in NumPy."""
    weights = load(find(Path("run"))).variables
    hidden = np.maximum(inputs @ weights["fc1/weights"] + weights["fc1/bias"], 0)
    logits = hidden @ weights["fc2/weights"] + weights["fc2/bias"]
    chosen = logits[np.arange(len(labels)), labels]
    return float((np.log(np.exp(logits).sum(axis=1)) - chosen).mean())


def test_the_same_pixels_of_another_type_are_refused(folder: Path, capsys: Capture) -> None:
    write_arrays(folder / "bytes.npz")
    floats = small_arrays(dtype="float32")
    write_arrays(folder / "floats.npz", x_train=floats["x_train"], x_test=floats["x_test"])
    run(small_config("data=arrays", "data.path=bytes.npz", "train.batch_size=4"), folder / "run", overrides=[])
    capsys.readouterr()
    message = refused(capsys, "eval", "run", "data.path=floats.npz")
    assert message.startswith("2 runner: error: data=arrays: stored pixels are divided by 1, those of arrays, on which")
    assert "by 255: convert the pixels of one dataset to the units of the other" in message


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            "eval run data=synthetic",
            "2 runner: error: data=synthetic has the fields x float[3,224,224], y int64[] of 1000 classes; the ne",
        ),
        ("eval run model=lenet", "model=lenet: the stored configuration is evaluated; only data=NAME, data.KEY, "),
        ("eval run cluster.workers=3", "cluster.workers=3: the stored configuration is evaluated"),
        ("eval run train.steps=3", "train.steps=3: the stored configuration is evaluated"),
        ("eval run data.colour=3", "data.colour: no such key"),
        ("eval run data=mnist data.cache_dir=absent", "data=mnist has the fields x float[1,28,28]"),
        ("eval run --output absent/file.json", "4 runner: error: cannot write absent/file.json: No such file"),
        ("predict run large.png", "3 runner: error: large.png: it is 9 x 8 pixels, the network takes 8 x 8"),
        ("predict run large.png --top 0", "2 runner: error: --top 0: expected 1 or more"),
        ("predict run large.png --output x.txt", "--output x.txt: expected a file that ends in .csv or .json"),
        ("predict run large.png --resize --output absent/x.csv", "4 runner: error: cannot write absent/x.csv: No s"),
        ("eval alone", "holds no config.yaml; expected a checkpoint in the directory of its run"),
        ("predict alone x.png", "holds no config.yaml; expected a checkpoint in the directory of its run"),
        ("eval absent", "6 runner: error"),
        ("predict absent x.png", "6 runner: error"),
    ],
)
def test_impossible_uses_of_networks_are_refused(stored: Path, capsys: Capture, arguments: str, complaint: str) -> None:
    shutil.copytree(stored / "checkpoints" / "step-12", "alone")
    Image.fromarray(np.zeros((8, 9), np.uint8)).save("large.png")
    assert complaint in refused(capsys, *arguments.split())


@pytest.mark.parametrize("verb", ["eval", "predict"])
def test_other_classes_are_refused(folder: Path, capsys: Capture, caplog: pytest.LogCaptureFixture, verb: str) -> None:
    images = write_images(folder / "images")
    run(small_config("data=image_folder", f"data.path={images}", "train.batch_size=2"), folder / "run", overrides=[])
    arguments = ["run", str(images / "test" / "cat" / "0.png")] if verb == "predict" else ["run"]
    (images / "train" / "cat" / "1.png").unlink()
    assert main([verb, *arguments]) == 0
    assert f"{images}: 3 train examples, but 4 in training" in caplog.text
    for split in ("train", "test"):
        (images / split / "dog").rename(images / split / "ant")
    stored = folder / "run" / "data.json"
    complaint = f"{images}: class 0 is 'ant', in training it was 'cat' ({stored}); restore the data"
    assert complaint in refused(capsys, verb, *arguments)


def test_the_normalisation_of_training_is_kept_with_other_data(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrays = small_arrays()
    config = small_config("data=arrays", f"data.path={write_arrays(folder / 'mine.npz')}", "train.batch_size=4")
    run(config, folder / "run", overrides=[])
    np.save("seen.npy", arrays["x_test"])

    def seen() -> tuple[Any, str]:
        assert main(["predict", "run", "seen.npy", "--output", "seen.csv"]) == 0
        return evaluated("run")["results"], Path("seen.csv").read_text()

    before = seen()
    assert "normalised" not in caplog.text
    write_arrays(folder / "mine.npz", x_train=arrays["x_train"] // 4)
    assert seen() == before
    path = folder / "run" / "data.json"
    kept = json.loads(path.read_text())
    del kept["normalisation"]
    path.write_text(json.dumps(kept))
    assert seen() != before
    assert f"{path} lacks the normalisation of training, so it is computed from the present data" in caplog.text


def test_a_checkpoint_of_another_network_is_refused(stored: Path, capsys: Capture) -> None:
    config = (stored / "config.yaml").read_text()
    (stored / "config.yaml").write_text(config.replace("hidden:\n  - 8", "hidden:\n  - 9"))
    assert "expected fc1/weights of shape (64, 9), found (64, 8)" in refused(capsys, "eval", "run")


def test_predictions_for_images_and_arrays_match_the_evaluation(stored: Path, capsys: Capture) -> None:
    np.save("many.npy", TEST["x"])
    Image.fromarray((TEST["x"][0, 0] * (255 / 16)).round().astype(np.uint8)).save("one.png")
    assert main(["predict", "run", "many.npy", "one.png", "--top", "2", "--output", "out.csv"]) == 0
    rows = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert len(rows) == 2 * 360
    best = [row for row in rows if row["place"] == "1"]
    hits = np.mean([int(row["class"]) == label for row, label in zip(best, TEST["y"], strict=False)])
    assert hits == pytest.approx(evaluated("run")["results"]["test/accuracy"])
    assert float(best[359]["probability"]) == pytest.approx(float(best[0]["probability"]), abs=0.02)
    assert (best[0]["file"], best[359]["file"]) == ("many.npy[0]", "one.png")
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["file", "class", "and", "probability", "2."]
    top = [[row["class"], f"{float(row['probability']):.4f}"] for row in rows[:2]]
    assert first.split() == ["many.npy[0]", *top[0], *top[1]]


@pytest.mark.parametrize(
    ("probability", "text"),
    [(0.0, "0.0000"), (1e-300, "<0.0001"), (4.9e-5, "<0.0001"), (5.1e-5, "0.0001"), (0.25, "0.2500"), (1.0, "1.0000")],
)
def test_a_tiny_probability_is_not_printed_as_zero(probability: float, text: str) -> None:
    assert probability_text(probability) == text


def test_images_are_cropped_and_resized_as_in_training(folder: Path) -> None:
    images = write_images(folder / "images", side=8)
    wide = np.random.default_rng(0).integers(0, 256, (8, 14, 3)).astype(np.uint8)
    Image.fromarray(wide).save(images / "test" / "cat" / "0.png")
    data = ("data=image_folder", f"data.path={images}", "data.size=5")
    config = small_config(*data, "train.batch_size=2")
    run(config, folder / "run", overrides=[])
    np.save("seen.npy", config.data.load().test["x"][:1])
    from_image, as_trained = predicted(str(images / "test" / "cat" / "0.png"), "seen.npy")
    assert from_image["classes"] == as_trained["classes"]


def test_arrays_of_any_range_are_normalised_as_in_training(folder: Path) -> None:
    floats = small_arrays(dtype="float32")
    path = write_arrays(folder / "floats.npz", x_train=floats["x_train"] - 99, x_test=floats["x_test"] - 99)
    run(small_config("data=arrays", f"data.path={path}", "train.batch_size=4"), folder / "run", overrides=[])
    np.save("seen.npy", floats["x_test"] - 99)
    found = [int(row["classes"][0]["class"]) for row in predicted("seen.npy")]
    assert np.mean(found == floats["y_test"]) == evaluated("run")["results"]["test/accuracy"]


def test_probabilities_of_all_classes_sum_to_one(stored: Path) -> None:
    np.save("one.npy", TEST["x"][0])
    (row,) = predicted("one.npy", "--top", "99")
    probabilities = [each["probability"] for each in row["classes"]]
    assert row["file"] == "one.npy"
    assert len(probabilities) == 10
    assert sum(probabilities) == pytest.approx(1.0)
    assert probabilities == sorted(probabilities, reverse=True)


def test_probabilities_of_logistic_units_are_independent(folder: Path) -> None:
    run(small_config("task.loss=logistic", "train.steps=1"), folder / "run", overrides=[])
    np.save("one.npy", TEST["x"][0])
    (row,) = predicted("one.npy", "--top", "10")
    assert sum(each["probability"] for each in row["classes"]) > 1.5
