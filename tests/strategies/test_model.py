"""``model`` with n parts equals ``single`` with n microbatches under any placement; updates of a stale pipeline."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runner.engine.compile.compile import Compiled
from runner.engine.compile.cost import node_seconds
from runner.engine.compile.passes.layer_groups import home_layers
from runner.engine.compile.program import Program
from runner.engine.graph import Graph, worker_device
from runner.errors import ConfigError
from runner.optimizers import Adam, Momentum, Sgd
from runner.strategies import ModelParallel, Single, Workload
from runner.strategies.microbatches import in_stale_parts
from runner.strategies.replica import shares
from tests.all_pairs import all_pairs
from tests.strategies.networks import BATCH, NETWORKS, Chosen, Examples, dense, workload_of
from tests.strategies.test_base import loss_and_gradients
from tests.strategies.training import (
    Placed,
    Run,
    Weights,
    Wires,
    begun,
    by_sender,
    bytes_on_links,
    compiled,
    difference,
    expect_same_run,
    near,
    single,
    trained,
)

STEPS = 3

LAYERS = {
    "dense": {"fc1": 0, "fc[23]": 1},
    "convolutional": {"conv*": 0, "fc": 1},
    "batch_normalised": {"conv1": 1, "norm1": 0, "fc": 1},
    "dropped_out": {"fc1": 1, "drop": 0, "fc2": 1},
}
"""Constraints (layers -> worker) for two or more workers; the other layers may be on any worker."""


def workload_for(network: str, dtype: str = "float64") -> Workload:
    """Return a workload whose optimizer uses slots, the step number, weight decay and active clipping."""
    return workload_of(network, Adam(lr=0.01, weight_decay=1e-3, clip_norm=0.5), dtype=dtype)


def run(strategy: ModelParallel, workload: Workload) -> Run:
    return trained(Placed(strategy), workload, STEPS)


@all_pairs(network=sorted(NETWORKS), workers=[1, 2, 3, 4], parts=[1, 2, 3], constrained=[False, True])
def test_model_equals_single_in_as_many_microbatches_bit_for_bit(
    network: str, workers: int, parts: int, constrained: bool
) -> None:
    constraints = LAYERS[network] if constrained and workers > 1 else None
    strategy = ModelParallel(workers=workers, concurrent_steps=parts, constraints=constraints)
    expect_same_run(run(strategy, workload_for(network)), single(workload_for(network), STEPS, parts))


@pytest.mark.parametrize("network", ["convolutional", "batch_normalised"])
def test_float32_on_fast_kernels_differs_by_rounding(network: str) -> None:
    """Fast kernels may round a fused node differently from its separate ops."""
    strategy, workload = (
        ModelParallel(concurrent_steps=2, constraints=LAYERS[network]),
        workload_for(network, dtype="float32"),
    )
    (found, _), (expected, _) = run(strategy, workload), single(workload, STEPS, 2)
    assert found["fc/weights"].dtype == np.float32
    assert difference(found, expected) <= 1e-4


def program_of(network: str, strategy: ModelParallel) -> Program:
    return Placed(strategy).build(workload_for(network))


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_all_nodes_of_a_layer_are_on_one_device(network: str) -> None:
    program = program_of(network, ModelParallel(workers=3, concurrent_steps=2))
    homes = home_layers(program.graph)
    devices: dict[str, set[str]] = {}
    for name, layer in homes.items():
        devices.setdefault(layer, set()).add(program.graph.nodes[name].device)
    assert all(len(own) == 1 for own in devices.values())
    stamped = {node.layer.name for node in program.graph if node.layer is not None}
    assert set(devices) == stamped
    # With concurrent parts and nearly free links, distribution saves time.
    assert len(set().union(*devices.values())) > 1


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"constraints": {"cnv*": 0}},
            "parallelism.constraints: 'cnv*': 0: no layer has this name; the layers are flat, fc1, relu1, fc2, relu2",
        ),
        (
            {"constraints": {"fc*": 2}},
            "'fc*': 2: there is no worker 2, expected 0 to 1; the pattern matches fc1, fc2, fc3",
        ),
        ({"constraints": {"fc*": -1}}, "'fc*': -1: there is no worker -1"),
        (
            {"constraints": {"fc*": 0, "fc1": 1}},
            "'fc1': 1: layer 'fc1' is already set to 0 by 'fc*'; expected one setting",
        ),
        ({"constraints": ["fc1"]}, "parallelism.constraints=['fc1']: expected a map from patterns of layer names to"),
        ({"constraints": {"fc1": "1"}}, "parallelism.constraints={'fc1': '1'}: expected a map from patterns"),
        ({"pipeline": "fresh"}, "parallelism.pipeline='fresh': expected one of same_gradients, stale"),
        ({"pipeline": "stale"}, "pipeline=stale with parallelism.concurrent_steps=1: expected 2 parts or more"),
        ({"placement": "p", "costs": "c"}, "parallelism.costs with parallelism.placement=p: a stored placement"),
        ({"placement": "p", "constraints": {"a": 0}}, "parallelism.constraints with parallelism.placement=p"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelParallel(**settings).build(workload_for("dense"))
    assert complaint in str(caught.value)


@pytest.mark.parametrize("network", sorted(NETWORKS))
@pytest.mark.parametrize("parts", [1, 2])
def test_a_tensor_is_sent_once_to_each_device_that_reads_it(network: str, parts: int) -> None:
    strategy = Placed(ModelParallel(workers=3, concurrent_steps=parts, constraints=LAYERS[network]))
    workload = workload_for(network)
    uncut: dict[str, Graph] = {}
    program = strategy.build(workload)
    compiled(program, near(3), uncut.__setitem__)
    wires = bytes_on_links(program, near(3))
    assert wires == _bytes_cut(uncut["dead code after fusion"], 3)
    with begun(strategy, workload) as trainer:
        counted = trainer.sent(range(2))
    assert counted == [2 * nbytes for nbytes in by_sender(wires, 3)]
    assert sum(counted) > 0


def test_two_devices_exchange_activations_and_gradients_and_the_learning_rate() -> None:
    """fc1 has 8 outputs of 8 bytes for each example; the learning rate is one value."""
    constraints = {"flat": 0, "fc1": 0, "relu1": 0, "fc[23]": 1, "relu2": 1, "loss": 1}
    workload = workload_of("dense", Momentum())
    program = Placed(ModelParallel(constraints=constraints)).build(workload)
    assert bytes_on_links(program, near(2)) == {(0, 1): BATCH * 8 * 8 + 8, (1, 0): BATCH * 8 * 8}


def _bytes_cut(graph: Graph, workers: int) -> Wires:
    """Return the bytes on each link before partitioning: each tensor once for each other device that reads it."""
    number = {worker_device(k): k for k in range(workers)}
    wires: Wires = Counter()
    for tensor, readers in graph.consumers().items():
        source = graph.nodes[tensor.node].device
        for destination in {reader.device for reader in readers} - {source}:
            wires[number[source], number[destination]] += graph.spec(tensor).nbytes
    return wires


def test_the_parts_of_a_pipeline_overlap_in_the_simulation() -> None:
    """The second device computes one part forward while the first device computes the other part."""
    constraints = {"fc1": 0, "relu1": 0, "fc2": 1, "relu2": 1, "fc3": 1}
    program = program_of("dense", ModelParallel(workers=2, concurrent_steps=2, constraints=constraints))
    step = compiled(program, near(2))
    early, late = sorted(range(2), key=lambda part: _forward(step, worker_device(0), part))
    first, second = (_forward(step, worker_device(0), late), _forward(step, worker_device(1), early))
    assert first[0] < second[1]
    assert second[0] < first[1]


def _forward(step: Compiled, device: str, part: int) -> tuple[float, float]:
    """Return the simulated start and end of the forward pass of a part on a device, in seconds."""
    graph, cluster = step.parts[device].graph, near(2)
    names = [name for name in graph.nodes if name.startswith(f"train/share_{part}/") and "/gradients/" not in name]
    nodes = [graph.nodes[name] for name in names]
    ends = [step.starts[node.name] + node_seconds(graph, node, cluster.device(device)) for node in nodes]
    return min(step.starts[node.name] for node in nodes), max(ends)


# ``pipeline: stale``: all gradients of a step are computed from the weights at its start and applied in turn.


def stale(workers: int, parts: int) -> Placed:
    return Placed(ModelParallel(workers=workers, concurrent_steps=parts, pipeline="stale"))


def momentum_by_hand(weights: Weights, batch: int, parts: int, step: int, momentum: float) -> Weights:
    """Return the dense network's weights after a step: each part's gradient at the old weights is applied in turn."""
    rate = 0.1 / (1 + step)
    examples = Examples(batch).read("train", step, 0, batch)
    now = dict(weights)
    for lo, hi in shares(batch, parts):
        _, _, gradients = loss_and_gradients(weights, examples["x"][lo:hi], examples["y"][lo:hi])
        for name, gradient in gradients.items():
            now[f"{name}/velocity"] = momentum * now[f"{name}/velocity"] - rate * gradient
            now[name] = now[name] + now[f"{name}/velocity"]
    return now


@pytest.mark.parametrize(("workers", "parts"), [(1, 3), (2, 2), (3, 3)])
def test_gradients_at_the_old_weights_are_applied_in_order(workers: int, parts: int) -> None:
    workload = workload_of(dense, Momentum())
    with begun(stale(workers, parts), workload) as trainer:
        for step in range(3):
            expected = momentum_by_hand(trainer.weights(), BATCH, parts, step, momentum=0.9)
            [(loss, _)] = trainer.train([step])
            assert np.isfinite(loss)
            assert difference(trainer.weights(), expected) <= 1e-12


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_the_first_step_has_the_loss_of_the_batch_at_the_old_weights(network: str) -> None:
    workload = workload_of(network, Sgd())
    assert trained(stale(2, 3), workload, 1)[1] == single(workload, 1, 3)[1]


@pytest.mark.parametrize("network", ["batch_normalised", "dropped_out"])
def test_a_stale_pipeline_with_one_part_equals_single(network: str) -> None:
    """The configuration refuses one part, so that the program is built without it."""
    workload = workload_for(network)
    one_part = SimpleNamespace(name="one stale part", build=lambda each: in_stale_parts(each, worker_device(0)))
    expect_same_run(trained(one_part, workload, 2), single(workload, 2), 1e-12)


def test_every_part_counts_as_an_update_and_advances_the_averages() -> None:
    """Compare with ``single`` on each half of a batch; the second starts with the slots and averages of the first."""
    optimizer = Adam(lr=0.01, clip_norm=0.5)
    workload, half = (workload_of("batch_normalised", optimizer, batch_size=size) for size in (12, 6))
    start, _ = trained(stale(2, 2), workload, 1)
    found, _ = trained(stale(2, 2), workload, [1], start)
    now, source = dict(start), Chosen(12, step=1)
    with begun(Single(), half, source=source) as trainer:
        for part in range(2):
            source.places = range(6 * part, 6 * part + 6)
            trainer.restore({name: value if _goes_on(name) else start[name] for name, value in now.items()})
            feeds = {"step": np.asarray(2 + part), "learning_rate": np.asarray(0.1 / 2)}
            trainer.session.run("train", step=part, feeds=feeds)
            for name, value in trainer.weights().items():
                now[name] = value if _goes_on(name) else now[name] + (value - start[name])
    assert difference(found, now) <= 1e-12


def _goes_on(name: str) -> bool:
    """Return whether a variable continues from the previous part: slots and moving averages do."""
    return name.endswith(("_moment", "moving_mean", "moving_variance"))


@pytest.mark.parametrize("network", ["convolutional", "batch_normalised"])
def test_bits_do_not_depend_on_the_devices_of_layers(network: str) -> None:
    expect_same_run(*(trained(stale(workers, 3), workload_for(network), 2) for workers in (3, 1)))
