"""Hybrid parallelism: bytes on each link, dependencies between passes of the dense layers, and the sharded loss."""

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from runner import nn
from runner.engine.graph import DeviceName, Graph, NetworkBuilder, Outputs, ops
from runner.fields import Field
from runner.optimizers import Momentum, Sgd
from runner.strategies import Hybrid, Single, Workload
from runner.strategies.replica import shares
from runner.tasks.classification import Classification
from runner.tasks.regression import Regression
from tests.all_pairs import all_pairs
from tests.strategies.networks import BATCH, CLASSES, Batch, hybrid, read_twice, workload_of
from tests.strategies.training import (
    Wires,
    begun,
    by_sender,
    bytes_on_links,
    compiled,
    expect_same_run,
    single,
    trained,
)

FEATURES = 8
"""Features per example that the dense layers receive: two filters at 2x2 positions."""
UNITS = [7, 5, CLASSES]
BELOW = 2 * 9 + 2
"""Number of parameters of the convolution."""
SHARDED = 6
"""Number of variables of the dense layers."""
B = 8
"""Bytes of a float64 value or an int64 index."""


def workload_for(batch_size: int = BATCH, clip_norm: float | None = None) -> Workload:
    return workload_of(hybrid, Momentum(clip_norm=clip_norm), batch_size=batch_size)


def sizes(total: int, workers: int) -> list[int]:
    return [hi - lo for lo, hi in shares(total, workers)]


def gathered(held: list[int], readers: list[int], each: int, *, backward: bool) -> Wires:
    """Return the bytes of held[j] values from each worker j to all i with readers[i] > 0; backward: gradients too."""
    sent: Wires = Counter()
    for j, i in permutations(range(len(held)), 2):
        sent[j, i] += held[j] * each * (readers[i] > 0)
        sent[j, i] += held[i] * each * (readers[j] > 0) * backward
    return sent


def loss_bytes(examples: list[int], classes: list[int], size: int = 2) -> Wires:
    """Return the bytes of the loss: labels, gradients and, per example and worker, ``size`` values and a prediction."""
    sent: Wires = Counter()
    for j, i in permutations(range(len(examples)), 2):
        sent[j, i] += examples[j] * B * (classes[i] > 0)  # labels
        sent[j, i] += examples[i] * (size * B + B + B) * (classes[j] > 0)  # the values, the largest logit and its class
        sent[j, i] += examples[j] * (size - 1) * B * (classes[i] > 0)  # gradients of the values that are not constants
    return sent


def formula(workers: int, batch: int = BATCH) -> Wires:
    """Return the bytes on every link in a step with one update, which are the same for all schemes."""
    examples = sizes(batch, workers)
    fc1, fc2, fc3 = (sizes(units, workers) for units in UNITS)
    sent = gathered(examples, fc1, FEATURES * B, backward=True)
    sent += gathered(examples, fc1, B, backward=False)  # indices, for dropout
    sent += gathered(fc1, fc2, batch * B, backward=True)
    sent += gathered(fc2, fc3, batch * B, backward=True)
    below = sizes(BELOW, workers)
    for j, i in permutations(range(workers), 2):
        sent[j, i] += loss_bytes(examples, fc3)[j, i]
        sent[j, i] += (below[i] + below[j]) * B  # gradients of the convolution: a part for the sum by i, the sum by j
        sent[j, i] += 2 * B * (i == 0)  # loss and accuracy
    return sent


@pytest.mark.parametrize(
    ("workers", "settings"),
    [
        (1, {}),
        (2, {"scheme": "a"}),
        (3, {}),
        (3, {"turns": True}),
        (3, {"scheme": "c"}),
        pytest.param(5, {"scheme": "c"}, marks=pytest.mark.slow),
    ],
)
def test_every_link_carries_the_bytes_of_the_formula(workers: int, settings: dict[str, Any]) -> None:
    strategy, expected = Hybrid(workers=workers, **settings), formula(workers)
    assert bytes_on_links(strategy.build(workload_for())) == +expected
    with begun(strategy, workload_for()) as trainer:
        counted = trainer.sent(range(2))
    assert counted == [2 * nbytes for nbytes in by_sender(expected, workers)]


@pytest.mark.parametrize(("scheme", "fc_batch"), [("b", 3), ("b", 4), ("c", 2), ("c", 6)])
def test_smaller_updates_send_the_same_bytes(scheme: str, fc_batch: int) -> None:
    program = Hybrid(workers=3, scheme=scheme, fc_batch=fc_batch).build(workload_for(12))
    assert bytes_on_links(program) == formula(3, 12)


def test_the_input_of_two_dense_layers_is_exchanged_once() -> None:
    workload = workload_of(read_twice, Sgd(), batch_size=4)
    expected = gathered([2, 2], [1, 1], 36 * B, backward=False) + gathered([3, 3], [1, 1], 4 * B, backward=True)
    for j, i in ((0, 1), (1, 0)):
        expected[j, i] += loss_bytes([2, 2], [2, 1])[j, i] + 2 * B * (i == 0)
    assert bytes_on_links(Hybrid(workers=2, scheme="a").build(workload)) == expected
    expect_same_run(trained(Hybrid(workers=2), workload, 3), single(workload, 3), 1e-10)


def test_clipping_sends_a_scalar_for_each_shard_and_a_factor_to_each_worker() -> None:
    expected = formula(3)
    for k in (1, 2):
        expected[k, 0] += SHARDED * B
        expected[0, k] += B
    assert bytes_on_links(Hybrid(workers=3).build(workload_for(clip_norm=0.5))) == expected


def test_without_trained_layers_below_no_gradients_of_images_are_sent() -> None:
    program = Hybrid(workers=2).build(workload_of("dense", Sgd(), batch_size=4))
    images, units = gathered([2, 2], [1, 1], 36 * B, backward=False), [8, 6]
    for width in units:
        images += gathered(sizes(width, 2), [1, 1], 4 * B, backward=True)
    images += loss_bytes([2, 2], [2, 1])
    images[1, 0] += 2 * B
    assert bytes_on_links(program) == images


def ancestors(graph: Graph, names: set[str]) -> set[str]:
    found = set(names)
    for node in reversed(list(graph)):
        if node.name in found:
            found.update(tensor.node for tensor in node.inputs)
            found.update(node.control_inputs)
    return found


def of_pass(graph: Graph, number: int) -> set[str]:
    return {node.name for node in graph if f"/pass_{number}/" in f"/{node.name}/"}


@pytest.mark.parametrize("scheme", ["b", "c"])
def test_a_pass_waits_for_the_previous_one_only_if_an_update_is_between_them(scheme: str) -> None:
    def waits(**changes: Any) -> bool:
        graph = Hybrid(workers=3, scheme=scheme, **changes).build(workload_for(12)).graph
        return bool(ancestors(graph, of_pass(graph, 1)) & of_pass(graph, 0))

    assert not waits()
    assert waits(fc_batch=4)


@pytest.mark.parametrize("fc_batch", [None, 4])
@pytest.mark.parametrize("scheme", ["b", "c"])
def test_activations_are_sent_before_the_dense_layers_are_computed(scheme: str, fc_batch: int | None) -> None:
    """So the transfer for the next pass overlaps with the computation of the current pass of the dense layers."""
    program = Hybrid(workers=3, scheme=scheme, fc_batch=fc_batch).build(workload_for(12))
    for part in compiled(program).parts.values():
        layers = [(node.op, node.layer.name if node.layer else "") for node in part.graph]
        sends = [i for i, (op, layer) in enumerate(layers) if (op, layer) == ("send", "flat")]
        dense = [i for i, (op, _) in enumerate(layers) if "matmul" in op]
        assert len(sends) == 2 * (1 if scheme == "b" and fc_batch in (None, 4) else 3)
        assert max(sends) < min(dense)


def test_in_turns_a_worker_sends_after_the_inputs_of_the_previous_pass_have_arrived() -> None:
    program = Hybrid(workers=3, turns=True).build(workload_for(12))
    parts = compiled(program).parts
    for before, (_, part) in zip([None, *parts], parts.items(), strict=False):
        flat = [node for node in part.graph if node.layer and node.layer.name == "flat"]
        sends = [i for i, node in enumerate(flat) if node.op == "send"]
        arrivals = {node.attributes["source"]: i for i, node in enumerate(flat) if node.op == "recv"}
        assert len(sends) == len(arrivals) == 2
        assert before is None or arrivals[before] < min(sends)


def test_all_devices_are_workers() -> None:
    program = Hybrid(workers=3).build(workload_for())
    assert {DeviceName.parse(node.device).job for node in program.graph if node.device} == {"worker"}
    assert all(node.device for node in program.graph)


# The loss over sharded classes equals the loss over whole logits.


def scaled(net: NetworkBuilder, batch: Batch, factor: float, classes: int = 5, loss: str = "softmax") -> Outputs:
    """Build one dense layer and multiply its logits by a factor."""
    h = nn.dense(net, nn.flatten(net, batch["x"], name="flat"), classes, name="fc")
    factors = ops.fill(net.graph, factor, (), net.state_dtype)
    return Classification(loss=loss).score(net, ops.mul(net.graph, h, factors), batch)


@all_pairs(factor=[0.0, 1.0, 1e4], workers=[2, 6], loss=["softmax", "logistic"])
def test_scores_equal_those_of_whole_logits(factor: float, workers: int, loss: str) -> None:
    """Equal logits (factor 0) predict the first class; large logits do not overflow; six workers share five classes."""
    workload = workload_of(partial(scaled, factor=factor, loss=loss), Sgd(), batch_size=7)
    with begun(Hybrid(workers=workers), workload) as sharded, begun(Single(), workload) as whole:
        came, expected = sharded.evaluate(), whole.evaluate()
    for name in expected:
        np.testing.assert_allclose(came[name], expected[name], rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(came["predictions"], expected["predictions"], strict=True)


@pytest.mark.parametrize("factor", [1.0, 30.0])
def test_gradients_equal_those_of_whole_logits(factor: float) -> None:
    workload = workload_of(partial(scaled, factor=factor), Sgd(), batch_size=7)
    expect_same_run(trained(Hybrid(workers=3), workload, 5), single(workload, 5), 1e-10)


@pytest.mark.parametrize(("loss", "size"), [("softmax", 2), ("logistic", 1)])
def test_logits_are_not_sent(loss: str, size: int) -> None:
    """The bytes of a step do not grow with the number of classes."""
    for classes in (5, 50):
        workload = workload_of(partial(scaled, factor=1.0, classes=classes, loss=loss), Sgd(), batch_size=4)
        sent = bytes_on_links(Hybrid(workers=2, scheme="a").build(workload))
        images, scores = 2 * 36 * 8, 2 * 8
        expected = loss_bytes([2, 2], [1, 1], size)
        assert sent == {(0, 1): expected[0, 1] + images, (1, 0): expected[1, 0] + images + scores}


def regression(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a regression of five numbers whose loss reads the targets twice."""
    outputs = Regression().score(net, nn.dense(net, nn.flatten(net, batch["x"], name="flat"), 5, name="fc"), batch)
    with net.layer("sum", "loss"):
        total = ops.reduce_sum(net.graph, ops.add(net.graph, outputs.prediction, batch["y"]), axes=(1,))
    return replace(outputs, metrics={"sum": total})


@pytest.mark.parametrize(("workers", "scheme"), [(2, "a"), (3, "b"), (6, "c")])
def test_a_regression_sends_columns_of_targets_once_and_two_sums_for_each_example(workers: int, scheme: str) -> None:
    workload = replace(workload_of(regression, Sgd()), fields={"x": Field((1, 6, 6)), "y": Field((5,))})
    examples, units = sizes(BATCH, workers), sizes(5, workers)
    expected = gathered(examples, units, 36 * B, backward=False)
    for j, i in permutations(range(workers), 2):
        expected[j, i] += examples[j] * units[i] * B + 2 * B * examples[i] * (units[j] > 0) + 2 * B * (i == 0)
    assert bytes_on_links(Hybrid(workers=workers, scheme=scheme).build(workload)) == +expected
