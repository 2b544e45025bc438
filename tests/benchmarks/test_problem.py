"""Problems on the disk: what was written is read, and it is the same computation."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cases import CASES, Case
from benchmarks.experiments import feeds, fixed_batch, opened, timed_experiment
from benchmarks.prepare import prepare
from benchmarks.problem import Layer, load_problem, unsupported
from runner.kernels.registry import Registry
from tests.benchmarks.interpreter import forward_loss

SMALL = {
    "lenet": CASES["smoke"],
    "convnet": Case(
        "convnet",
        ("model=cifar_convnet", "model.widths=[2,3]", "model.units=4", "model.dropout=0"),
        shape=(3, 8, 8),
        classes=4,
        batch=4,
        turn=1,
    ),
    "resnet": Case("resnet", ("model=resnet_cifar", "model.depth=8"), shape=(3, 8, 8), classes=4, batch=2, turn=1),
}


def test_a_written_result_is_read_back(tmp_path: Path) -> None:
    written = prepare(CASES["smoke"], tmp_path, threads=1, precision="bfloat16")
    read = load_problem(tmp_path)
    plain = {field.name for field in dataclasses.fields(read)} - {"layers", "folder"}
    assert {name: getattr(read, name) for name in plain} == {name: getattr(written, name) for name in plain}
    assert (read.precision, read.threads, read.momentum, read.learning_rate) == ("bfloat16", 1, 0.9, 0.001)
    assert [(layer.name, layer.inputs, layer.shape) for layer in read.layers] == [
        (layer.name, layer.inputs, layer.shape) for layer in written.layers
    ]
    assert "precision=bfloat16" in read.overrides
    assert read.variable("conv1/weights").shape == (2, 1, 5, 5)
    assert (read.x.shape, read.x.dtype, read.y.shape) == ((4, 1, 16, 16), np.float32, (4,))


def test_every_trainable_variable_has_a_value_and_so_have_moving_averages(tmp_path: Path) -> None:
    problem = prepare(SMALL["convnet"], tmp_path, threads=1, precision="float32")
    named = {name for layer in problem.layers for name in layer.variables.values()}
    assert {*problem.trainable, *problem.moving} == named
    assert all(problem.variable(name).dtype == np.float32 for name in named)


@pytest.mark.parametrize("name", SMALL)
def test_the_layers_compute_the_same_as_the_network(name: str, tmp_path: Path, registry: Registry) -> None:
    problem = prepare(SMALL[name], tmp_path, threads=1, precision="float32")
    experiment = timed_experiment(problem.overrides)
    with opened(experiment, fixed_batch(experiment, problem.x, problem.y)) as session:
        fed = feeds(experiment, experiment.program.clients["forward"], step=0)
        ours = float(session.run("forward", feeds=fed)["loss"])
    assert forward_loss(problem, registry) == pytest.approx(ours, rel=1e-5)


def test_a_layer_a_subject_cannot_make_is_named() -> None:
    error = unsupported(Layer("norm1", "lrn", ("x",), (1, 2)), "the peer", ("conv", "relu"))
    assert str(error) == "layer 'norm1' is of kind 'lrn', which the peer does not make; it makes conv, relu"
