"""Recipes of whole runs: rules by name, rates scaled with the batch, averaged weights, and labels that do not count."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runner
from runner.checkpoint import load, newest
from runner.commands.explain import explain
from runner.data.settings import load_limited
from runner.errors import ConfigError
from runner.optimizers.averages import average_of
from runner.records.summary import Summary
from runner.tracking import read_metrics
from runner.training.build import build
from runner.training.exported import ExportedNetwork, export
from tests.small_runs import small_config, train

SMALL_DATA = ("data.train_limit=64", "data.test_limit=40", "train.eval_batch_size=16")
AVERAGED = (*SMALL_DATA, "schedule=constant", "optimizer.average.decay=0.9")
SQUARE_ROOT = "{rate:sqrt,weight_decay:true,base_batch:8}"
BIASES = '{match:"*/bias",lr_factor:2.0,schedule:{name:step,unit:epochs,multiplier:0.1,boundaries:[1.0]}}'


def stored(folder: Path) -> dict[str, Any]:
    path = newest(folder / "checkpoints")
    assert path is not None
    return dict(load(path).variables)


def test_a_resumed_run_continues_rules_and_averages_bit_for_bit(tmp_path: Path) -> None:
    settings = (*AVERAGED, f"optimizer.rules=[{BIASES}]")
    whole = train(tmp_path / "whole", *settings, "train.steps=6")
    train(tmp_path / "parts", *settings, "train.steps=3")
    assert train(tmp_path / "parts", *settings, "train.steps=6", resume=True).weights_sha256 == whole.weights_sha256


def test_averages_are_evaluated_predicted_and_exported_and_change_no_weight(tmp_path: Path) -> None:
    averaged = train(tmp_path / "averaged", *AVERAGED, "train.steps=6")
    plain = train(tmp_path / "plain", *AVERAGED, "optimizer.average.decay=null", "train.steps=6")
    variables, others = stored(tmp_path / "averaged"), stored(tmp_path / "plain")
    assert all((variables[name] == value).all() for name, value in others.items())
    assert variables.keys() - others.keys() == {average_of(name) for name in others if name.count("/") == 1}
    assert averaged.final["test/loss"] != plain.final["test/loss"]
    assert averaged.final["train/loss"] == plain.final["train/loss"]
    run = runner.load(tmp_path / "averaged")
    assert run.evaluate()["test/loss"] == pytest.approx(averaged.final["test/loss"], rel=1e-6)
    weights = run.weights()
    assert all((weights[name] == variables[average_of(name)]).all() for name in weights)
    assert set(run.slots()) >= {average_of(name) for name in weights}


def test_an_exported_network_has_the_averages(tmp_path: Path) -> None:
    train(tmp_path / "run", *AVERAGED, "train.steps=6")
    run, config = runner.load(tmp_path / "run"), small_config(*AVERAGED)
    x = load_limited(config.data).test.arrays["x"][:7]
    expected = run.predict(x)
    checkpoint = tmp_path / "run" / "checkpoints" / "step-6"
    export(config, tmp_path / "run", checkpoint, tmp_path / "network", "0")
    np.testing.assert_array_equal(ExportedNetwork(tmp_path / "network").predict(x), expected)
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: the extra onnx")
    path = run.export(tmp_path / "network.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"x": x.astype(np.float32)})
    np.testing.assert_allclose(config.task.answers(logits.astype(np.float64)), expected, rtol=1e-5)


def test_averages_start_at_weights_from_another_run(tmp_path: Path) -> None:
    train(tmp_path / "first", *SMALL_DATA)
    frozen = ('optimizer.rules=[{match:"*",lr_factor:0}]', f"init_from={tmp_path / 'first'}")
    train(tmp_path / "second", *AVERAGED, *frozen)
    before, after = stored(tmp_path / "first"), stored(tmp_path / "second")
    names = [name for name in before if name.count("/") == 1]
    assert all((after[average_of(name)] == before[name]).all() for name in names)
    assert len(names) == 4


def test_the_rate_of_a_larger_batch_is_scaled_and_explained(tmp_path: Path) -> None:
    base = (*SMALL_DATA, "schedule=constant", f"optimizer.rules=[{BIASES}]", "optimizer.lr=0.01")
    settings = (*base, "optimizer.weight_decay=0.1", f"optimizer.batch_scaling={SQUARE_ROOT}")
    summary = train(tmp_path / "scaled", *settings)
    experiment = build(small_config(*settings))
    np.testing.assert_allclose([experiment.rates(step) for step in (0, 2)], [[0.02, 0.02], [0.02, 0.002]])
    recorded = [each.values.get("train/learning_rate") for each in read_metrics(tmp_path / "scaled" / "metrics.jsonl")]
    assert recorded[0] == experiment.rates(0)[0]
    optimizer = experiment.optimizer
    written = (f"optimizer.lr={optimizer.lr!r}", f"optimizer.weight_decay={optimizer.weight_decay!r}")
    assert train(tmp_path / "written", *base, *written).weights_sha256 == summary.weights_sha256
    text = explain(small_config(*settings))
    assert "learning rate           0.02 and weight decay 0.1997 for batches of 32, from 0.01 and 0.1 for 8\n" in text
    assert "rule                    */bias: learning rate x 2, schedule step\n" in text


def test_a_rule_without_a_variable_ends_the_run_before_its_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"optimizer.rules\[0\].match='conv\*': no trained variable has this name"):
        train(tmp_path, 'optimizer.rules=[{match:"conv*",lr_factor:2.0}]')
    assert not (tmp_path / "checkpoints").exists()


def test_ignored_labels_do_not_count_in_evaluations(tmp_path: Path) -> None:
    summary = train(tmp_path, *SMALL_DATA, "task.ignored_label=3", "task.metrics=[top5_accuracy]")
    run = runner.load(tmp_path)
    test = load_limited(small_config(*SMALL_DATA).data).test.arrays
    x, y = test["x"], test["y"]
    probabilities = run.predict(x)
    counted = y != 3
    assert 0 < counted.sum() < len(y)
    loss = -np.log(probabilities[np.arange(len(y)), y])[counted].mean()
    assert summary.final["test/loss"] == pytest.approx(loss, rel=1e-5)
    right = (probabilities.argmax(axis=1) == y)[counted].mean()
    assert summary.final["test/accuracy"] == pytest.approx(right, rel=1e-6)
    assert Summary.read(tmp_path / "summary.json").final["test/top5_accuracy"] >= right
