"""``sync_data`` with K workers equals ``single``, bit for bit if ``single`` has K microbatches."""

from functools import cache
from itertools import product
from typing import Any

import pytest

from runner.engine.graph import Graph, worker_device
from runner.errors import ConfigError
from runner.strategies import SyncData
from runner.strategies.collectives import COMBINES, in_buckets
from runner.strategies.replica import shares
from runner.strategies.synchronous.batch_statistics import STATISTICS
from tests.all_pairs import all_pairs
from tests.strategies.networks import NETWORKS, workload_of
from tests.strategies.training import Run, begun, combined_by, compiled, expect_same_run, sends_of, single, trained

STEPS = 6

PER_EXAMPLE = sorted(set(NETWORKS) - {"batch_normalised"})
"""Networks that treat every example separately."""


@cache
def sync(network: str, workers: int, dtype: str = "float64", combine: str = "sharded_reduce") -> Run:
    strategy = SyncData(**combined_by(combine, workers))
    return trained(strategy, workload_of(network, dtype=dtype), STEPS)


@all_pairs(network=PER_EXAMPLE, workers=[1, 2, 3, 4], combine=sorted(COMBINES))
def test_sync_data_equals_single_with_the_same_batch(network: str, workers: int, combine: str) -> None:
    expect_same_run(sync(network, workers, combine=combine), single(workload_of(network), STEPS), 1e-10)


@pytest.mark.parametrize(
    ("network", "workers", "dtype", "combine"),
    [
        *product(sorted(NETWORKS), [1, 2, 3, 4], ["float64"], ["sharded_reduce"]),
        # A ring of two workers adds two terms, whose order changes no bit.
        *product(sorted(NETWORKS), [2], ["float64"], ["ring_all_reduce"]),
        *product(["dense"], [2, 4], ["float64"], ["all_reduce"]),
        ("dense", 3, "float32", "sharded_reduce"),
    ],
)
def test_sync_data_equals_single_in_as_many_microbatches_bit_for_bit(
    network: str, workers: int, dtype: str, combine: str
) -> None:
    expected = single(workload_of(network, dtype=dtype), STEPS, workers)
    assert {value.dtype.name for value in expected[0].values()} == {dtype}
    expect_same_run(sync(network, workers, dtype, combine), expected)


@all_pairs(network=sorted(NETWORKS), workers=[2, 4], bucket_bytes=[0, 200, 1 << 20])
def test_sent_bytes_are_those_of_gradients_statistics_and_two_scores(
    network: str, workers: int, bucket_bytes: int
) -> None:
    strategy = SyncData(workers=workers, bucket_bytes=bucket_bytes)
    with begun(strategy, workload_of(network)) as trainer:
        assert trainer.session.sent_bytes() == [0] * workers
        trainer.train(range(3))
        counted = trainer.session.sent_bytes()
        planned = [plan.sent_bytes for plan in trainer.session.plans("train").values()]
        # All variables except slots are exchanged: trained variables as gradients, moving averages as statistics.
        exchanged = {name: s for name, s in trainer.program.variables.items() if "velocity" not in name}
        gradients = [spec.size for name, spec in exchanged.items() if "moving" not in name][::-1]
        sizes = gradients + [spec.size for name, spec in exchanged.items() if "moving" in name]
    messages = [sum(sizes[i] for i in bucket) for bucket in in_buckets([8 * size for size in sizes], bucket_bytes)]
    assert sum(messages) == sum(spec.size for spec in exchanged.values())
    expected = [0] * workers
    for size in messages:
        for k, (lo, hi) in enumerate(shares(size, workers)):
            expected[k] += 8 * ((size - (hi - lo)) + (workers - 1) * (hi - lo))
    for k in range(1, workers):
        expected[k] += 2 * 8  # loss and accuracy of the share
    assert planned == expected
    assert counted == [3 * nbytes for nbytes in expected]


@pytest.mark.parametrize("bucket_bytes", [0, 200])
def test_buckets_change_no_bit(bucket_bytes: int) -> None:
    workload = workload_of("batch_normalised")
    found = trained(SyncData(workers=3, bucket_bytes=bucket_bytes), workload, STEPS)
    expect_same_run(found, sync("batch_normalised", 3))


def test_gradients_that_fit_into_a_bucket_are_one_message_to_each_owner() -> None:
    def sends(bucket_bytes: int) -> int:
        return len(sends_of(SyncData(workers=3, bucket_bytes=bucket_bytes).build(workload_of("convolutional"))))

    scores, slices_and_sums = 2 * 2, 3 * (2 + 2)
    assert sends(1 << 20) == scores + slices_and_sums
    assert sends(0) == scores + 6 * slices_and_sums


@pytest.mark.parametrize("combine", ["sharded_reduce", "ring_all_reduce"])
def test_two_workers_send_each_bucket_once(combine: str) -> None:
    sends = sends_of(SyncData(workers=2, combine=combine).build(workload_of("convolutional")))
    scores = 2
    assert len(sends) == scores + 2


BACKUPS = "parallelism.backup_workers=1 with parallelism"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"combine": "ring"},
            "parallelism.combine='ring': expected one of sharded_reduce, ring_all_reduce, hierarchical, all_reduce, "
            "parameter_server",
        ),
        (
            {"workers_per_host": 2},
            "parallelism.workers_per_host=2 with parallelism.combine=sharded_reduce: only combine=hierarchical has "
            "groups of workers; choose it, or set workers_per_host to null",
        ),
        (
            {"combine": "hierarchical"},
            "parallelism.workers_per_host=null with parallelism.combine=hierarchical and parallelism.workers=2: "
            "expected the number of workers of each host, which divides the number of workers",
        ),
        (
            {"combine": "hierarchical", "workers": 6, "workers_per_host": 4},
            "parallelism.workers_per_host=4 with parallelism.combine=hierarchical and parallelism.workers=6: "
            "expected the number of workers of each host, which divides the number of workers",
        ),
        ({"statistics": "global"}, "parallelism.statistics='global': expected one of shares, first_worker, pooled"),
        (
            {"servers": 2},
            "parallelism.servers=2 with parallelism.combine=sharded_reduce: only combine=parameter_server has servers; "
            "choose it, or set servers to null",
        ),
        (
            {"backup_workers": 1, "combine": "ring_all_reduce"},
            f"{BACKUPS}.combine=ring_all_reduce: a collective needs the gradients of all workers; choose "
            "combine=parameter_server, or backup_workers=0",
        ),
        (
            {"backup_workers": 1, "combine": "parameter_server", "statistics": "pooled"},
            f"{BACKUPS}.statistics=pooled: these statistics need certain workers in every step, but the gradient "
            "of any worker may be dropped; choose statistics=shares, or backup_workers=0",
        ),
        (
            {"backup_workers": 1, "combine": "parameter_server", "overlap": False},
            f"{BACKUPS}.overlap=false: with backup workers, gradients are always sent during the backward pass; "
            "choose overlap=true, or backup_workers=0",
        ),
        (
            {"replay": "x"},
            "parallelism.replay=x with parallelism.backup_workers=0: without backup workers, all gradients count, "
            "so there is nothing to replay; set replay to null, or backup_workers to the recorded number",
        ),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SyncData(**settings)
    assert str(caught.value) == message


# overlap=false: equal results and equally many sent bytes, but all gradients exist before the first is sent.

COMBINED = [*sorted(COMBINES), "parameter_server"]


def overlapping(combine: str, *, overlap: bool, **more: str) -> SyncData:
    """Return a strategy with several buckets of several gradients."""
    return SyncData(**combined_by(combine, 3), bucket_bytes=200, overlap=overlap, **more)


def parts(combine: str, network: str, *, overlap: bool) -> list[Graph]:
    """Return the scheduled graphs of the workers."""
    step = compiled(overlapping(combine, overlap=overlap).build(workload_of(network)))
    return [step.parts[worker_device(k)].graph for k in range(3)]


def sends_of_gradients(part: Graph) -> list[int]:
    """Return the positions of the worker's sends, without the sends of loss and accuracy."""
    scores = ("/train/loss_", "/train/accuracy_")
    return [i for i, node in enumerate(part) if node.op == "send" and not any(each in node.name for each in scores)]


def backward(part: Graph) -> list[int]:
    return [i for i, node in enumerate(part) if "/gradients/" in node.name and node.op != "send"]


@pytest.mark.parametrize("combine", COMBINED)
@pytest.mark.parametrize("network", ["convolutional", "batch_normalised"])
def test_without_overlap_all_gradients_exist_before_one_is_sent(network: str, combine: str) -> None:
    blocking, overlapped = (parts(combine, network, overlap=each) for each in (False, True))
    assert all(max(backward(part)) < min(sends_of_gradients(part)) for part in blocking)
    assert all(max(backward(part)) > min(sends_of_gradients(part)) for part in overlapped)


@pytest.mark.parametrize(
    ("combine", "statistics"),
    [*product(["sharded_reduce"], sorted(STATISTICS)), *((combine, "pooled") for combine in COMBINED[::2])],
)
def test_overlap_changes_no_bit_and_no_byte(combine: str, statistics: str) -> None:
    workload, runs, sent = workload_of("batch_normalised"), [], []
    for overlap in (False, True):
        strategy = overlapping(combine, overlap=overlap, statistics=statistics)
        with begun(strategy, workload) as trainer:
            runs.append((trainer.train(range(3)), trainer.weights()))
            sent.append([plan.sent_bytes for plan in trainer.session.plans("train").values()])
    expect_same_run(*(run[::-1] for run in runs))
    assert sent[0] == sent[1]
