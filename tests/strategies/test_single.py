"""``single``, the oracle of the other strategies, against NumPy and against itself."""

import numpy as np
import pytest

from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum, Sgd
from runner.strategies.single import Single
from tests.strategies.networks import CLASSES, NETWORKS, Examples, dense, task_of
from tests.strategies.training import Array, Weights, difference, opened, trained


def loss_and_gradients(weights: Weights, x: Array, y: Array) -> tuple[float, float, dict[str, Array]]:
    """The dense network in NumPy: mean loss, accuracy and the gradient of every parameter."""
    layers = ["fc1", "fc2", "fc3"]
    inputs, h = [], x.reshape(len(x), -1)
    for layer in layers:
        inputs.append(h)
        z = h @ weights[f"{layer}/weights"] + weights[f"{layer}/bias"]
        h = z if layer == "fc3" else np.maximum(z, 0)
    p = np.exp(h - h.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    delta = (p - np.eye(CLASSES)[y]) / len(y)
    gradients = {}
    for layer, h_in in zip(reversed(layers), reversed(inputs), strict=True):
        gradients[f"{layer}/weights"] = h_in.T @ delta
        gradients[f"{layer}/bias"] = delta.sum(0)
        delta = (delta @ weights[f"{layer}/weights"].T) * (h_in > 0)
    return float(loss), float((h.argmax(1) == y).mean()), gradients


@pytest.mark.parametrize("microbatches", [1, 2, 5])
def test_a_step_is_gradient_descent_on_the_mean_loss(microbatches: int, registry: Registry) -> None:
    task = task_of(dense, Sgd(), batch_size=9, microbatches=microbatches)
    with opened(Single(), task, registry) as trainer:
        trainer.session.run("init")
        for step in range(4):
            before = trainer.weights()
            [(loss, accuracy)] = trainer.train([step])
            batch = Examples(9).read("train", step, 0, 9)
            expected, hits, gradients = loss_and_gradients(before, batch["x"], batch["y"])
            assert loss == pytest.approx(expected, rel=1e-12)
            assert accuracy == pytest.approx(hits, rel=1e-12)
            after = trainer.weights()
            for name, gradient in gradients.items():
                step_taken = before[name] - 0.1 / (1 + step) * gradient
                np.testing.assert_allclose(after[name], step_taken, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("microbatches", [2, 3, 4, 13])
@pytest.mark.parametrize("network", ["dense", "convolutional", "dropped_out"])
def test_microbatches_change_rounding_only(network: str, microbatches: int, registry: Registry) -> None:
    tasks = [task_of(NETWORKS[network], Momentum(), batch_size=13, microbatches=k) for k in (1, microbatches)]
    (whole, history), (cut, other) = (trained(Single(), task, registry, 6) for task in tasks)
    assert 0 < difference(whole, cut) <= 1e-10
    np.testing.assert_allclose(history, other, rtol=1e-10)


def test_nothing_is_sent(registry: Registry) -> None:
    with opened(Single(), task_of(dense, Sgd(), batch_size=9, microbatches=3), registry) as trainer:
        trainer.session.run("init")
        trainer.train(range(2))
        assert trainer.session.sent_bytes() == [0]
