"""`runner explain`: its numbers are those of the networks and of the plans."""

from __future__ import annotations

from runner.build import build
from runner.explain import explain, layer_rows, training_plans
from tests.small_runs import small_config


def test_lenet_on_mnist_has_the_parameters_and_multiply_adds_of_its_layers() -> None:
    rows = {row.name: row for row in layer_rows(build(small_config("model=lenet", "data=mnist")))}
    assert sum(row.parameters for row in rows.values()) == 431_080
    assert rows["conv1"].output == "20x24x24"
    assert rows["conv1"].multiply_adds == 24 * 24 * 20 * 25
    assert rows["conv2"].multiply_adds == 8 * 8 * 50 * 20 * 25
    assert rows["fc1"].multiply_adds == 800 * 500
    assert rows["fc2"].multiply_adds == 500 * 10
    assert rows["fc2"].parameters == 5_010
    assert rows["relu1"].activation_bytes == 500 * 4


def test_moving_averages_are_no_parameters() -> None:
    rows = layer_rows(build(small_config("model=cifar_convnet", "data=cifar10")))
    assert sum(row.parameters for row in rows) == 551_146


def test_bytes_sent_are_those_of_the_plans() -> None:
    config = small_config("parallelism=sync_data", "parallelism.workers=2")
    experiment = build(config)
    text = explain(config)
    plans = training_plans(experiment)
    assert len(plans) == 2
    for plan in plans.values():
        assert plan.sent_bytes > 0
        assert f"{plan.sent_bytes:,}" in text
        assert f"{plan.peak_bytes:,}" in text


def test_the_text_says_what_would_run() -> None:
    text = explain(small_config("train.steps=7", "train.batch_size=16"))
    assert "model mlp on digits, float32, optimizer momentum, parallelism single" in text
    assert "7 of 16 examples" in text
    # 64*8 + 8 and 8*10 + 10.
    assert "parameters              610" in text
