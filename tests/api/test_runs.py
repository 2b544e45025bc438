"""Runs from Python: training, stored runs, and their results."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import runner
from runner.api.runs import Run
from runner.commands.explain import explain
from runner.config import hydra_app
from runner.data import Digits
from runner.tracking import MetricsLog
from tests.api.session_classes import Recorder
from tests.fake_training import FakeTraining
from tests.small_runs import SMALL

QUICK = (*SMALL, "model=mlp", "model.hidden=[8]")


@pytest.fixture(scope="module")
def stored(trained: Callable[..., Path]) -> Run:
    """Return a short run with a validation split, so that its best checkpoint is kept."""
    return Run(trained("train.steps=6", "train.eval_every=2", "data.val_fraction=0.2"))


def test_a_run_is_trained_resumed_and_loaded(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    run = runner.run(QUICK, directory="one", train={"steps": 2, "eval_every": 2}, callbacks=[recorder])
    assert (run.directory, run.summary.steps, run.config.model.hidden) == (here / "one", 2, [8])
    assert recorder.calls == [("step", 1), ("step", 2), ("evaluation", 2), ("checkpoint", 2)]
    assert (run.directory / "session" / "callback_recorder.py").read_text().startswith("@dataclass\nclass Recorder(")
    assert run.resume(train={"steps": 4}).summary.steps == 4
    loaded = runner.load("one")
    assert loaded.run_id == run.run_id
    assert repr(loaded).splitlines()[0].split() == ["status", "finished"]
    assert capfd.readouterr().out == "", "only tables of the command line go to standard output"
    again = runner.run(QUICK, train={"steps": 4}, optimizer="adam")
    assert runner.load(again.run_id).directory == again.directory
    assert "configuration: optimizer.name" in loaded.compare(again)


def test_each_run_of_a_second_has_a_directory(fake_training: FakeTraining, monkeypatch: pytest.MonkeyPatch) -> None:
    job = hydra_app.compose(QUICK)
    monkeypatch.setattr(hydra_app, "compose", lambda overrides: job)
    for _ in range(3):
        runner.run(QUICK)
        (fake_training.calls[-1].run_dir / "run.json").touch()
    names = [call.run_dir.name for call in fake_training.calls]
    assert names == [job.run_dir.name, f"{job.run_dir.name}-2", f"{job.run_dir.name}-3"]


def test_metrics_are_records_and_a_frame(stored: Run) -> None:
    records = stored.metrics()
    assert [record["step"] for record in records] == [1, 2, 4, 6]
    assert records[-1]["test/accuracy"] == stored.summary.final["test/accuracy"]
    frame = stored.frame()
    assert list(frame.index) == [1, 2, 4, 6]
    assert frame["val/loss"].isna().tolist() == [True, False, False, False]
    assert frame["val/loss"].iloc[-1] == stored.summary.final["val/loss"]


def test_weights_and_slots_are_separate(stored: Run) -> None:
    weights, slots = stored.weights("newest"), stored.slots("newest")
    shapes = {"fc1/weights": (64, 8), "fc1/bias": (8,), "fc2/weights": (8, 10), "fc2/bias": (10,)}
    assert {name: value.shape for name, value in weights.items()} == shapes
    assert set(slots) == {f"{name}/velocity" for name in weights}


def test_predictions_equal_those_of_the_network(stored: Run) -> None:
    test, weights = Digits().load().test, stored.weights()
    normalised = stored.config.data.normalisation().apply(test["x"], np.dtype(np.float64)).reshape(-1, 64)
    hidden = np.maximum(normalised @ weights["fc1/weights"] + weights["fc1/bias"], 0)
    logits = hidden @ weights["fc2/weights"] + weights["fc2/bias"]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for x in (test["x"], test["x"][:, 0]):
        np.testing.assert_allclose(stored.predict(x, cluster={"device": "cpu"}), expected, atol=1e-5)
    accuracy = (expected.argmax(axis=1) == test["y"]).mean()
    assert stored.evaluate()["test/accuracy"] == pytest.approx(accuracy)
    assert stored.evaluate(which="newest")["val/loss"] == pytest.approx(stored.summary.final["val/loss"], rel=1e-5)
    assert set(stored.evaluate(["data.test_limit=5"], data={"val_fraction": 0.0})) == {"test/loss", "test/accuracy"}


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((8, 8)), r"x has shape \(8, 8\); expected \(N, 1, 8, 8\); pass one example x as x\[None\]"),
        (np.zeros((0, 8, 8)), r"x has shape \(0, 8, 8\)"),
        (np.array([[["a"] * 8] * 8]), "x has dtype <U1; expected numbers"),
    ],
)
def test_examples_of_another_kind_are_refused(stored: Run, x: np.ndarray, message: str) -> None:
    with pytest.raises(runner.RunnerError, match=message):
        stored.predict(x)


def test_an_unknown_checkpoint_is_refused(stored: Run) -> None:
    with pytest.raises(runner.RunnerError, match="which='last': expected 'best', 'newest' or None"):
        stored.weights("last")


def test_texts_show_their_lines(stored: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # The available memory of the machine changes between two texts.
    monkeypatch.setattr("runner.commands.explain.available_memory", lambda: 8 << 30)
    text = runner.explain(QUICK, train={"steps": 2})
    assert repr(text) == str(text)
    assert repr(stored.explain()) == explain(stored.config)
    assert text.startswith("model mlp on digits, float32, optimizer momentum, parallelism single")


def test_an_active_run_has_metrics_and_no_summary(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        assert Run(tmp_path).frame().empty
        log.append(1, {"train/loss": 0.5})
    assert [record["train/loss"] for record in Run(tmp_path).metrics()] == [0.5]
    with pytest.raises(runner.RunnerError, match="active or was killed; call resume"):
        _ = Run(tmp_path).summary


@pytest.mark.slow
def test_the_mlflow_id_names_a_run(here: Path) -> None:
    run = runner.run(["model=mlp", "model.hidden=[8]"], train={"steps": 2}, parallelism="single")
    mlflow_id = (run.directory / "tracking.json").read_text().split('"run_id": "')[1].split('"')[0]
    assert runner.load(mlflow_id).directory == run.directory


def test_importing_runner_imports_no_library() -> None:
    code = (
        "import sys, runner; print(sorted({'numpy', 'hydra', 'omegaconf', 'mlflow', 'rich'} & set(sys.modules)));"
        "print(set(runner.__all__) <= set(dir(runner)), all(getattr(runner, name) for name in runner.__all__))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\nTrue True\n"
    with pytest.raises(AttributeError, match="has no attribute 'runn'; it has Callback, "):
        _ = runner.runn


def test_the_package_is_typed() -> None:
    assert Path(runner.__file__).with_name("py.typed").is_file()
