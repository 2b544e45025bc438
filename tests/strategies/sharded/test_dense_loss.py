"""The loss over sharded classes equals the loss over whole logits."""

from functools import partial

import numpy as np
import pytest

from runner import nn
from runner.engine.graph import ops
from runner.engine.graph.network import NetworkBuilder, Outputs
from runner.errors import ConfigError
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Sgd
from runner.strategies.hybrid import Hybrid
from runner.strategies.single import Single
from tests.strategies.networks import Batch, task_of
from tests.strategies.sharded.test_hybrid_bytes import loss as loss_bytes
from tests.strategies.sharded.test_hybrid_bytes import wires
from tests.strategies.training import difference, opened, trained


def scaled(net: NetworkBuilder, batch: Batch, factor: float, classes: int = 5, loss: str = "softmax") -> Outputs:
    """A dense layer alone, whose logits are multiplied."""
    h = nn.dense(net, nn.flatten(net, batch["x"], name="flat"), classes, name="fc")
    factors = ops.fill(net.graph, factor, (), net.state_dtype)
    return nn.classify(net, ops.mul(net.graph, h, factors), batch["y"], loss=loss)


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
@pytest.mark.parametrize("workers", [2, 3, 6])
@pytest.mark.parametrize("factor", [0.0, 1.0, 1e4])
def test_answers_are_those_of_whole_logits(factor: float, workers: int, loss: str, registry: Registry) -> None:
    """Of equal logits (factor 0) the first class wins; large ones do not overflow; six workers have five classes."""
    task = task_of(partial(scaled, factor=factor, loss=loss), Sgd(), batch_size=7)
    answers = []
    for strategy in (Hybrid(workers=workers), Single()):
        with opened(strategy, task, registry) as trainer:
            trainer.session.run("init")
            answers.append(trainer.evaluate())
    came, expected = answers
    for name in expected:
        np.testing.assert_allclose(came[name], expected[name], rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(came["predictions"], expected["predictions"], strict=True)


@pytest.mark.parametrize("factor", [1.0, 30.0])
def test_gradients_are_those_of_whole_logits(factor: float, registry: Registry) -> None:
    task = task_of(partial(scaled, factor=factor), Sgd(), batch_size=7)
    weights, _ = trained(Hybrid(workers=3), task, registry, 5)
    assert difference(weights, trained(Single(), task, registry, 5)[0]) <= 1e-10


@pytest.mark.parametrize(("loss", "told"), [("softmax", 2), ("logistic", 1)])
def test_logits_stay_where_they_are(loss: str, told: int) -> None:
    """The bytes of a step do not grow with the number of classes."""
    for classes in (5, 50):
        task = task_of(partial(scaled, factor=1.0, classes=classes, loss=loss), Sgd(), batch_size=4)
        sent = wires(Hybrid(workers=2, scheme="a").build(task))
        images, scores = 2 * 36 * 8, 2 * 8
        expected = loss_bytes([2, 2], [1, 1], told)
        assert sent == {(0, 1): expected[0, 1] + images, (1, 0): expected[1, 0] + images + scores}


def test_another_sum_is_refused() -> None:
    def odd(net: NetworkBuilder, batch: Batch) -> Outputs:
        outputs = scaled(net, batch, 1.0)
        with net.graph.layer(net.graph.nodes[outputs.losses.node].layer):
            total = ops.reduce_sum(net.graph, outputs.logits, axes=(0,))
            losses = ops.add(net.graph, outputs.losses, ops.reduce_sum(net.graph, total))
        return Outputs(losses, outputs.predictions, outputs.correct, outputs.logits)

    with pytest.raises(
        ConfigError, match=r"layer 'loss' \(loss\) follows a dense layer, and its op 'reduce_sum' cannot"
    ):
        Hybrid(workers=2).build(task_of(odd, Sgd(), batch_size=4))
