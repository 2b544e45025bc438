import numpy as np
import pytest

from runner import nn
from runner.engine.graph import ops
from runner.engine.graph.autodiff import gradients
from runner.engine.graph.network import Outputs
from tests.nn.support import Array, Bench, bench, normal

LOGITS = 3.0 * normal(5, 4)
LABELS = np.array([0, 3, 3, 1, 0])


def classified(loss: str) -> tuple[Bench, Outputs]:
    b = bench(LOGITS)
    labels = ops.placeholder(b.net.graph, LABELS.shape, "int64", name="y")
    b.feeds[labels] = LABELS
    return b, nn.classify(b.net, b.x, labels, loss)


def softmax(x: Array) -> Array:
    e: Array = np.exp(x)
    p: Array = e / e.sum(axis=1, keepdims=True)
    return p


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def test_softmax_is_the_log_loss_of_the_label() -> None:
    b, outputs = classified("softmax")
    expected = -np.log(softmax(LOGITS)[np.arange(5), LABELS])
    np.testing.assert_allclose(b.value(outputs.losses), expected, rtol=1e-12)


def test_logistic_sums_one_unit_per_class() -> None:
    b, outputs = classified("logistic")
    p, truth = sigmoid(LOGITS), np.eye(4)[LABELS]
    expected = -(truth * np.log(p) + (1 - truth) * np.log(1 - p)).sum(axis=1)
    np.testing.assert_allclose(b.value(outputs.losses), expected, rtol=1e-12)


@pytest.mark.parametrize(("loss", "response"), [("softmax", softmax), ("logistic", sigmoid)])
def test_gradient_is_response_minus_truth(loss: str, response: object) -> None:
    assert callable(response)
    b, outputs = classified(loss)
    (found,) = gradients(b.net.graph, [outputs.losses], [outputs.logits])
    assert found is not None
    np.testing.assert_allclose(b.value(found), response(LOGITS) - np.eye(4)[LABELS], rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", nn.LOSSES)
def test_predictions_and_hits(loss: str) -> None:
    b, outputs = classified(loss)
    predictions, correct = b.values(outputs.predictions, outputs.correct)
    assert predictions.dtype == np.int64
    assert correct.dtype == LOGITS.dtype
    assert (predictions == LOGITS.argmax(axis=1)).all()
    assert (correct == (predictions == LABELS)).all()
    assert 0 < correct.sum() < 5


def test_is_a_layer_of_kind_loss() -> None:
    b, outputs = classified("softmax")
    stamp = b.net.graph.nodes[outputs.losses.node].layer
    assert stamp is not None
    assert (stamp.name, stamp.kind) == ("loss", "loss")
    assert b.net.layer_outputs["loss"] == outputs.losses


def test_unknown_loss() -> None:
    with pytest.raises(ValueError, match="loss 'hinge': expected one of softmax, logistic"):
        classified("hinge")
