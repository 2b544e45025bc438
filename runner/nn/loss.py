"""The head of a classifier: loss and prediction of each example, and whether the prediction is correct."""

from runner.engine.graph import ops
from runner.engine.graph.network import NetworkBuilder, Outputs
from runner.engine.graph.tensor import Tensor
from runner.nn.layers import new_layer

LOSSES = ("softmax", "logistic")


def classify(net: NetworkBuilder, logits: Tensor, labels: Tensor, loss: str = "softmax") -> Outputs:
    """Add layer "loss" over logits (N, C) and labels (N,) int64, computed in the network's state dtype.

    loss: "softmax", the cross-entropy of a softmax over the classes; or "logistic", one logistic unit per class with
    target 1 for the label and 0 for the others, their cross-entropies summed (Krizhevsky 2014, 1-of-C). Losses are in
    nats. Raises ValueError for any other loss.
    """
    graph = net.graph
    with new_layer(net, "loss", "loss"):
        logits = ops.as_dtype(graph, logits, net.state_dtype)
        losses = net.output(_losses(net, logits, labels, loss))
        predictions = ops.argmax(graph, logits, axis=1)
        correct = ops.cast(graph, ops.equal(graph, predictions, labels), net.state_dtype)
    return Outputs(losses, predictions, correct, logits)


def _losses(net: NetworkBuilder, logits: Tensor, labels: Tensor, loss: str) -> Tensor:
    graph = net.graph
    if loss == "softmax":
        return ops.softmax_cross_entropy(graph, logits, labels)[0]
    if loss == "logistic":
        targets = ops.one_hot(graph, labels, depth=graph.spec(logits).shape[1], dtype=net.state_dtype)
        return ops.reduce_sum(graph, ops.sigmoid_cross_entropy(graph, logits, targets), axes=(1,))
    raise ValueError(f"loss {loss!r}: expected one of {', '.join(LOSSES)}")
