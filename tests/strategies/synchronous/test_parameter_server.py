"""``sync_data`` with ``combine=parameter_server`` equals ``single``; the variables have one copy, on the servers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import nn
from runner.engine.compile.program import Program
from runner.engine.graph import NetworkBuilder, Normal, Outputs, TensorSpec, ops, server_task
from runner.errors import ConfigError
from runner.optimizers import Adagrad, Adam, Momentum, Optimizer, Sgd
from runner.strategies import SyncData
from runner.strategies.servers import shard_by_size
from runner.tasks.classification import Classification
from tests.all_pairs import all_pairs
from tests.strategies.networks import CLASSES, NETWORKS, Batch, workload_of
from tests.strategies.training import begun, expect_same_bits, expect_same_run, single, trained

STEPS = 4


def served(workers: int, servers: int, statistics: str = "shares") -> SyncData:
    return SyncData(workers=workers, combine="parameter_server", servers=servers, statistics=statistics)


@all_pairs(network=sorted(NETWORKS), workers=[1, 2, 3, 4], servers=[1, 2, 3])
def test_parameter_server_equals_single(network: str, workers: int, servers: int) -> None:
    """The run equals ``workers`` microbatches bit for bit and, if no op mixes examples, one batch up to rounding."""
    found = trained(served(workers, servers), workload_of(network), STEPS)
    expect_same_run(found, single(workload_of(network), STEPS, workers))
    if network != "batch_normalised":
        expect_same_run(found, single(workload_of(network), STEPS), 1e-10)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_other_precisions_equal_microbatches_bit_for_bit(network: str, dtype: str) -> None:
    found = trained(served(3, 2), workload_of(network, dtype=dtype), STEPS)
    assert {value.dtype for value in found[0].values()} == {np.dtype(np.float32)}
    expect_same_run(found, single(workload_of(network, dtype=dtype), STEPS, 3))


@pytest.mark.parametrize(
    "optimizer", [Sgd(), Adam(), Adagrad(), Momentum(bias_lr_factor=2.0)], ids=lambda each: each.name
)
def test_servers_update_as_single_does_with_every_optimizer(optimizer: Optimizer) -> None:
    workload = workload_of("dropped_out", optimizer)
    expect_same_run(trained(served(2, 3), workload, STEPS), single(workload, STEPS, 2))


@pytest.mark.parametrize("statistics", ["shares", "first_worker", "pooled"])
@pytest.mark.parametrize("workers", [1, 3])
def test_statistics_equal_those_of_a_sharded_reduce(statistics: str, workers: int) -> None:
    strategies = served(workers, 2, statistics), SyncData(workers=workers, statistics=statistics)
    expect_same_run(*(trained(each, workload_of("batch_normalised"), STEPS) for each in strategies))


def bytes_of_a_step(program: Program, workers: int, servers: int, clips: bool) -> list[int]:
    """Return the bytes that each worker and then each server sends, by the formula in the docstring of the strategy."""
    kept = {node.name: node.device for node in program.graph if node.op == "variable"}
    network = {name: spec.nbytes for name, spec in program.variables.items() if "velocity" not in name}
    trained_bytes = {name: nbytes for name, nbytes in network.items() if "moving" not in name}
    scalar = 8
    sent = [sum(network.values()) + (2 * scalar if k else 0) for k in range(workers)]
    for server in range(servers):
        own = [n for name, n in trained_bytes.items() if kept[name] == server_task(server)]
        norms = (servers - 1 if server == 0 else len(own)) * scalar if clips else 0
        sent.append(workers * sum(own) + norms)
    return sent


@all_pairs(network=sorted(NETWORKS), processes=[(1, 1), (2, 1), (3, 2), (4, 3)], clip_norm=[None, 0.5])
def test_bytes_sent_in_a_step_are_those_of_the_formula(
    network: str, processes: tuple[int, int], clip_norm: float | None
) -> None:
    workload = workload_of(network, Momentum(weight_decay=1e-3, clip_norm=clip_norm))
    with begun(served(*processes), workload) as trainer:
        assert trainer.session.sent_bytes() == [0] * sum(processes)
        counted = trainer.sent(range(3))
        plans = trainer.session.plans("train")
        planned = [plans[device].sent_bytes for device in sorted(plans, key=lambda name: ("ps" in name, name))]
        expected = bytes_of_a_step(trainer.program, *processes, clip_norm is not None)
    assert planned == expected
    assert counted == [3 * nbytes for nbytes in expected]


@pytest.mark.parametrize("statistics", ["first_worker", "pooled"])
def test_statistics_without_a_sum_are_sent_by_the_first_worker_only(statistics: str) -> None:
    workers, servers, channels = 3, 2, 3
    with begun(served(workers, servers, statistics), workload_of("batch_normalised")) as trainer:
        counted = trainer.sent([0])
        expected = bytes_of_a_step(trainer.program, workers, servers, clips=True)
    for k in range(workers):
        averages = 0 if k == 0 else 2 * channels * 8
        pooled = 4 * channels * 8 * (workers - 1 if k == 0 else 1) if statistics == "pooled" else 0
        expected[k] += pooled - averages
    assert counted == expected


def tied(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network that uses one matrix in two products."""
    h = nn.flatten(net, batch["x"], name="flat")
    with net.layer("tied", "dense"):
        weights = net.parameter("weights", (36, 36), Normal(0.1)).tensor
        h = ops.matmul(net.graph, ops.matmul(net.graph, h, weights), weights)
    return Classification().score(net, nn.dense(net, h, CLASSES, name="fc"), batch)


def test_a_variable_that_is_used_twice_is_fetched_once_and_has_one_gradient() -> None:
    workload = workload_of(tied, Sgd())
    with begun(served(2, 1), workload) as trainer:
        counted = trainer.sent(range(3))
        assert counted == [3 * nbytes for nbytes in bytes_of_a_step(trainer.program, 2, 1, clips=False)]
        expect_same_bits(trainer.weights(), single(workload, 3, 2)[0])


def floats(**sizes: int) -> dict[str, TensorSpec]:
    return {name: TensorSpec((size,), "float32") for name, size in sizes.items()}


@pytest.mark.parametrize(
    ("sizes", "servers", "expected"),
    [
        # Variables are placed in order of decreasing size, each on the server with the fewest bytes.
        ({"a": 1, "b": 10, "c": 6, "d": 5, "e": 2}, 2, {"a": 1, "b": 0, "c": 1, "d": 1, "e": 0}),
        # Equal variables are placed in order of creation; of equal servers, the first with the fewest variables wins.
        ({"z": 3, "y": 3, "x": 3, "w": 3}, 3, {"z": 0, "y": 1, "x": 2, "w": 0}),
        # Variables without elements are distributed too.
        ({"a": 0, "b": 0, "c": 0}, 2, {"a": 0, "b": 1, "c": 0}),
    ],
)
def test_variables_are_sharded_by_size(sizes: dict[str, int], servers: int, expected: dict[str, int]) -> None:
    assert shard_by_size(floats(**sizes), servers) == expected


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.data())
def test_no_server_is_empty_and_servers_differ_by_one_variable_at_most(sizes: list[int], data: st.DataObject) -> None:
    servers = data.draw(st.integers(1, len(sizes)))
    specs = floats(**{f"v{i}": size for i, size in enumerate(sizes)})
    chosen = shard_by_size(specs, servers)
    assert list(chosen) == list(specs)
    assert set(chosen.values()) == set(range(servers))
    loads = [sum(specs[name].size for name, at in chosen.items() if at == server) for server in range(servers)]
    assert max(loads) - min(loads) <= max(sizes)


def test_more_servers_than_variables_are_refused() -> None:
    expected = r"parallelism\.servers=7: the network has 6 variables, .*; use 6 servers or fewer"
    with pytest.raises(ConfigError, match=expected):
        served(2, 7).build(workload_of("dense"))


def test_parameter_server_has_one_server_by_default_and_other_combines_have_none() -> None:
    assert SyncData(combine="parameter_server").servers == 1
    assert SyncData().servers is None
