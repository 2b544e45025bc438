"""Whole runs of tasks other than classification, under every strategy, and the refusal of what does not fit a task."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import runner
from runner.checkpoint import find, load
from runner.cli import main
from runner.engine.graph import Expr, Graph, ops
from runner.errors import ConfigError
from runner.fields import Field
from runner.models import Mlp
from runner.records.summary import Summary
from runner.tasks import METRICS
from runner.tasks.base import Metric
from runner.tasks.regression import Regression
from runner.testing import check_gradients
from runner.tracking import read_metrics
from runner.training.inference import _InputArray
from tests.oracles import evaluate
from tests.plugin_tables import EXAMPLES, restored_tables
from tests.refusal import Capture, refused

EXAMPLE = EXAMPLES / "own_task"
PLUGIN = ["--plugin", str(EXAMPLE / "tables.py"), "--config-dir", str(EXAMPLE / "conf")]
TABLE = ["data=table", "data.path=rows.csv", "data.targets=[u,v]", "model=mlp", "model.hidden=[6]"]
QUIET = ["tracking=none", "train.steps=6", "train.batch_size=8", "train.eval_every=3", "train.log_every=1"]
REGRESSION = [*TABLE, "task=regression", "task.metrics=[within_tenth,mse]"]
TWO_OUTPUTS = [*TABLE, "task=numbers_and_kind", "data.label=kind"]
FIELDS = {"x": Field((3,)), "y": Field((2,))}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a table of 50 rows; plugins are removed afterwards."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(3, 50))
    rows = np.stack([a, b, c, a + 2 * b, b * c, a > 0], axis=1)
    np.savetxt("rows.csv", rows, delimiter=",", header="a,b,c,u,v,kind", comments="")
    with restored_tables():
        yield tmp_path


def trained(folder: str, *overrides: str) -> tuple[Summary, dict[str, NDArray[np.float64]]]:
    """Train in float64; return the summary and the weights."""
    assert main([*PLUGIN, *QUIET, "precision=float64", f"hydra.run.dir={folder}", *overrides]) == 0
    return Summary.read(Path(folder, "summary.json")), dict(load(find(Path(folder), None)).variables)


MOMENTUM = ["optimizer=momentum", "optimizer.lr=0.01", "schedule=constant"]
LBFGS = ["optimizer=lbfgs", "schedule=constant"]
STRATEGIES = {
    "sync_data": [*MOMENTUM, "parallelism=sync_data"],
    "servers": [*MOMENTUM, "parallelism=sync_data", "parallelism.combine=parameter_server"],
    "model": [*MOMENTUM, "parallelism=model"],
    "hybrid": [*MOMENTUM, "parallelism=hybrid"],
    "async_data": [*MOMENTUM, "parallelism=async_data", "parallelism.workers=1", "parallelism.loop=direct"],
    "sandblaster": [*LBFGS, "parallelism=sandblaster", "parallelism.portions_per_worker=2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("task", "metrics"),
    [(REGRESSION, {"mae", "within_tenth", "mse"}), (TWO_OUTPUTS, {"mse", "kind_accuracy"})],
    ids=["regression", "two outputs"],
)
@pytest.mark.usefixtures("folder")
def test_every_strategy_trains_like_single(strategy: str, task: list[str], metrics: set[str], capsys: Capture) -> None:
    settings = [*task, *STRATEGIES[strategy]]
    if strategy == "hybrid" and task is TWO_OUTPUTS:
        text = refused([*PLUGIN, *QUIET, *settings], capsys)
        assert "parallelism=hybrid: layer 'loss' (loss) follows a dense layer, and its op 'slice' cannot be" in text
        return
    summary, weights = trained(strategy, *settings)
    optimizer = LBFGS if strategy == "sandblaster" else MOMENTUM
    expected_summary, expected = trained("single", *task, *optimizer, "parallelism=single")
    for each in (summary, expected_summary):
        scored = {name for name in each.final if name.startswith("test/")}
        assert scored == {f"test/{name}" for name in (*metrics, "loss")}
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-9, atol=1e-10, err_msg=name)


@pytest.mark.usefixtures("folder")
def test_commands_serve_a_regression(capsys: Capture) -> None:
    summary, weights = trained("run", *REGRESSION, "parallelism=single", "checkpoint.keep_best=true", "task.loss=huber")
    rows = np.loadtxt("rows.csv", delimiter=",", skiprows=1)[::5]
    others = np.delete(np.loadtxt("rows.csv", delimiter=",", skiprows=1), np.s_[::5], axis=0)[:, [0, 1, 2, 5]]
    x = (rows[:, [0, 1, 2, 5]] - others.mean(axis=0)) / others.std(axis=0)
    hidden = np.maximum(x @ weights["fc1/weights"] + weights["fc1/bias"], 0)
    predicted = hidden @ weights["fc2/weights"] + weights["fc2/bias"]
    error = np.abs(predicted - rows[:, 3:5])
    expected = {
        "test/loss": np.where(error < 1, error**2 / 2, error - 0.5).mean(),
        "test/mae": error.mean(),
        "test/mse": (error**2).mean(),
        "test/within_tenth": (error < 0.1).mean(),
    }
    assert {name: summary.headline[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    assert (summary.monitor, summary.direction, summary.best_step) == ("test/loss", "min", 6)
    recorded = {name for each in read_metrics(Path("run/metrics.jsonl")) for name in each.values}
    assert {"train/loss", "train/mae", "train/mse"} <= recorded
    run = runner.load("run")
    assert run.evaluate(train={"eval_batch_size": 7}) == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(run.predict(rows[:, [0, 1, 2, 5]]), predicted, rtol=1e-9)
    assert "relu1" in run.explain()
    np.save("rows.npy", rows[:2, [0, 1, 2, 5]])
    capsys.readouterr()
    assert main(["predict", "run", "rows.npy", "--output", "found.csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["file", "u", "v"]
    found = np.loadtxt("found.csv", delimiter=",", skiprows=1, usecols=(1, 2))
    np.testing.assert_allclose(found, predicted[:2], rtol=1e-9)
    assert main(["predict", "run", "rows.npy", "--output", "found.json"]) == 0
    numbers = json.loads(Path("found.json").read_text())[1]["numbers"]
    assert numbers == pytest.approx(dict(zip("uv", predicted[1], strict=True)))
    capsys.readouterr()
    message = refused(["predict", "run", "rows.npy", "--top", "2"], capsys)
    assert "--top 2: task=regression predicts no classes" in message
    assert "inputs of shape (4,), which are not images" in refused(["predict", "run", "one.png"], capsys, code=3)


def test_a_prediction_from_integers_feeds_targets_as_floats() -> None:
    source = _InputArray(np.zeros((2, 3), np.int64), {"x": Field((3,), "int64"), "y": Field((2,))}, "float32")
    read = source.read("test", 0, 0, 2)
    assert (read["x"].dtype, read["y"].dtype) == (np.int64, np.float32)


def test_a_score_without_a_declared_metric_is_refused() -> None:
    class Lacking(Regression):
        @property
        def measures(self) -> Mapping[str, Metric]:
            return {"r2": Metric("max")}

    with pytest.raises(ConfigError, match="task=regression: score returned the metrics mae; expected r2"):
        check_gradients(Lacking().network(Mlp(hidden=[2]), FIELDS), fields=FIELDS)


@pytest.mark.parametrize("classes", [9, 5, 3])
def test_top5_accuracy_counts_labels_among_the_five_largest_logits(classes: int) -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(40, classes)), rng.integers(0, classes, 40)
    logits[0], logits[1, :6] = np.nan, 7.0  # NaN is wrong; of six equal logits, each has none that is larger
    logits[20:, 0] = -np.inf
    graph = Graph()
    x, y = ops.placeholder(graph, (40, classes), "float64"), ops.placeholder(graph, (40,), "int64")
    top5 = METRICS["top5_accuracy"].value(Expr(graph, x), Expr(graph, y))
    (found,) = evaluate(graph, [top5], {x: logits, y: labels})
    largest = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    expected = (largest == labels[:, None]).any(axis=1)
    expected[0] = False
    expected[1] = int(labels[1] < 6)
    np.testing.assert_array_equal(found, expected)
    assert 0 < found.mean() < 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([*TABLE, "task=classification"], "the field y of the dataset is float[2]; expected a label of type int64"),
        (
            [*TABLE, "task=numbers_and_kind"],
            "task=numbers_and_kind reads x, y, kind; data=table has no kind, but x flo",
        ),
        (
            [*TABLE, "task=regression", "task.loss=softmax"],
            "task.loss='softmax': expected one of squared, absolute, hu",
        ),
        ([*TABLE, "task=regression", "task.metrics=[mae]"], "task.metrics=['mae', 'mae']: expected different names"),
        (["task.metrics=[mae]"], "task.metrics='mae': expected one of top5_accuracy"),
        (
            [*REGRESSION, "train.monitor=test/accuracy"],
            "expected one of val/mae, val/within_tenth, val/mse, val/loss, ",
        ),
        (
            [*REGRESSION[:3], "task=regression", "model=lenet"],
            "layer 'conv1' (conv): expected images (N, C, H, W), got float32[4,4]; use a",
        ),
        ([*REGRESSION, "data.augment.flip=true"], "data.augment: expected no crop and no flip, because the examples"),
        (["model.loss=logistic"], "task.loss"),
        (["task=regresion"], "did you mean 'regression'"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_does_not_fit_a_task_is_refused(given: list[str], message: str, capsys: Capture) -> None:
    assert message in refused([*PLUGIN, *QUIET, *given], capsys)
