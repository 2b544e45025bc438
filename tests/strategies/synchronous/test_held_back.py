"""``overlap=false``: the same bits and bytes, and no gradient is sent before all exist."""

import pytest

from runner.engine.compile.compile import compile_signature
from runner.engine.graph.device import local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.base import Task
from runner.strategies.sync_data import SyncData
from tests.strategies.networks import NETWORKS, task_of
from tests.strategies.training import expect_same_bits, opened, trained

WORKERS = 3
COMBINES = ["sharded_reduce", "ring_all_reduce", "all_reduce", "parameter_server"]
STEPS = 3


def task_for(network: str) -> Task:
    return task_of(NETWORKS[network], Momentum(), batch_size=13)


def strategy(combine: str, *, overlap: bool, **more: str) -> SyncData:
    """A strategy with several buckets of several gradients."""
    return SyncData(workers=WORKERS, combine=combine, bucket_bytes=200, overlap=overlap, **more)


def parts(combine: str, network: str, registry: Registry, *, overlap: bool) -> list[Graph]:
    """The scheduled graphs of the workers."""
    program = strategy(combine, overlap=overlap).build(task_for(network))
    cluster = local_cluster(program.workers, program.servers)
    compiled = compile_signature(program.graph, program.clients["train"].signature, cluster, registry)
    return [compiled.parts[worker_device(k)].graph for k in range(WORKERS)]


def sends_of_gradients(part: Graph) -> list[int]:
    """Positions of the worker's sends, without those of loss and accuracy."""
    scores = ("/train/loss_", "/train/accuracy_")
    return [i for i, node in enumerate(part) if node.op == "send" and not any(each in node.name for each in scores)]


def backward(part: Graph) -> list[int]:
    return [i for i, node in enumerate(part) if "/gradients/" in node.name and node.op != "send"]


@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("network", ["convolutional", "batch_normalised"])
def test_all_gradients_exist_before_one_is_sent(network: str, combine: str, registry: Registry) -> None:
    for blocking, overlapped in zip(
        *(parts(combine, network, registry, overlap=each) for each in (False, True)), strict=True
    ):
        assert max(backward(blocking)) < min(sends_of_gradients(blocking))
        assert max(backward(overlapped)) > min(sends_of_gradients(overlapped))


@pytest.mark.parametrize("statistics", ["shares", "first_worker", "pooled"])
@pytest.mark.parametrize("combine", COMBINES)
def test_no_bit_and_no_byte_changes(combine: str, statistics: str, registry: Registry) -> None:
    task = task_for("batch_normalised")
    blocking, overlapped = (strategy(combine, overlap=each, statistics=statistics) for each in (False, True))
    weights, history = trained(blocking, task, registry, STEPS)
    expected = trained(overlapped, task, registry, STEPS)
    expect_same_bits(weights, expected[0])
    assert history == expected[1]
    with opened(blocking, task, registry) as held, opened(overlapped, task, registry) as free:
        sent = [[plan.sent_bytes for plan in each.session.plans("train").values()] for each in (held, free)]
    assert sent[0] == sent[1]


def test_one_worker_has_nothing_to_hold_back(registry: Registry) -> None:
    task = task_for("dense")
    weights = [trained(SyncData(workers=1, overlap=each), task, registry, STEPS)[0] for each in (False, True)]
    expect_same_bits(*weights)
