"""``model`` with sharded dense layers equals ``single`` for every choice of shards and number of workers."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from runner.engine.compile.program import Program
from runner.engine.graph import LayerStamp, Tensor
from runner.errors import ConfigError
from runner.optimizers import Adam, Momentum
from runner.strategies import ModelParallel, Workload
from runner.strategies.replica import shares
from tests.all_pairs import all_pairs
from tests.strategies.networks import BATCH, NETWORKS, branched, hybrid, read_twice, workload_of
from tests.strategies.training import (
    Placed,
    Run,
    Wires,
    begun,
    by_sender,
    bytes_on_links,
    expect_same_run,
    layers_of,
    near,
    single,
    trained,
)

STEPS = 3
FEATURES, UNITS = 8, [7, 5, 3]
"""Input features and units of the dense layers of ``hybrid``; no number of workers above 1 divides all units."""
B = 8
"""Bytes of a float64 value or an int64 index."""

WAYS = {
    "column": {"fc1": "column"},
    "row": {"fc2": "row"},
    "column, row": {"fc1": "column", "fc2": "row"},
    "column, column": {"fc[12]": "column"},
    "row, column": {"fc1": "row", "fc2": "column"},
    "row, row": {"fc1": "row", "fc2": "row"},
    "column, row, column": {"fc[13]": "column", "fc2": "row"},
    "row for the loss": {"fc3": "row"},
}


def workload_for(dtype: str = "float64") -> Workload:
    """Return a workload whose optimizer uses slots, the step number, weight decay and active clipping."""
    return workload_of(hybrid, Adam(lr=0.01, weight_decay=1e-3, clip_norm=0.5), dtype=dtype)


def model(workload: Workload, **settings: Any) -> Run:
    return trained(Placed(ModelParallel(**settings)), workload, STEPS)


@pytest.mark.parametrize(("workers", "parts"), [(2, 1), (3, 2), pytest.param(4, 3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ways", WAYS)
def test_sharded_model_equals_single(ways: str, workers: int, parts: int) -> None:
    found = model(workload_for(), workers=workers, shard=WAYS[ways], concurrent_steps=parts)
    expect_same_run(found, single(workload_for(), STEPS), 1e-10)


@pytest.mark.parametrize(("network", "way"), list(zip(sorted(NETWORKS), ["column", "row"] * 2, strict=True)))
def test_all_dense_layers_of_a_network_can_be_sharded(network: str, way: str) -> None:
    workload = workload_of(network, Momentum())
    expect_same_run(model(workload, workers=3, shard={"fc*": way}), single(workload, STEPS), 1e-10)


@pytest.mark.parametrize("left", ["column", "row"])
@pytest.mark.parametrize("right", ["column", "row"])
def test_branches_that_merge_can_be_sharded_in_any_way(left: str, right: str) -> None:
    workload = workload_of(branched, Momentum())
    expect_same_run(model(workload, workers=3, shard={"left": left, "right": right}), single(workload, STEPS), 1e-10)


def test_a_stale_pipeline_gives_the_weights_of_the_whole_network() -> None:
    settings = {"workers": 2, "concurrent_steps": 3, "pipeline": "stale"}
    expect_same_run(
        model(workload_for(), **settings, shard=WAYS["column, row"]), model(workload_for(), **settings), 1e-10
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.03)])
def test_lower_precision_differs_by_rounding(dtype: str, tolerance: float) -> None:
    (weights, history), (_, reference) = (
        model(workload_for(dtype), workers=3, shard=WAYS["column, row"]),
        single(workload_for(dtype), STEPS),
    )
    assert weights["fc1/weights"].dtype == np.float32
    np.testing.assert_allclose([loss for loss, _ in history], [loss for loss, _ in reference], rtol=tolerance)


def program_of(workers: int, shard: dict[str, str], **constraints: int) -> Program:
    strategy = ModelParallel(workers=workers, shard=shard, constraints=constraints)
    return Placed(strategy).build(workload_of(hybrid, Momentum()))


def test_shards_are_placed_in_order_and_a_sum_is_on_the_device_of_its_reader() -> None:
    layers = layers_of(program_of(3, WAYS["column, row"], conv1=1, relu3=2))
    assert {name: layers[name] for name in layers if "/" in name} == {
        f"{layer}/shard_{j}": str(j) for layer in ("fc1", "relu2", "drop", "fc2") for j in range(3)
    }
    assert (layers["conv1"], layers["fc2"], layers["relu3"]) == ("1", "2", "2")
    assert not {"fc1", "relu2", "drop"} & set(layers)


def test_products_of_rows_are_summed_in_the_order_of_the_workers_and_the_bias_is_added_once() -> None:
    graph = program_of(3, WAYS["column, row"]).graph
    (total,) = [node for node in graph if node.name == "train/fc2/matmul/sum"]
    assert [tensor.node for tensor in total.inputs] == [f"train/shard_{j}/fc2/matmul" for j in range(3)]
    readers = [node.name for node in graph.consumers()[Tensor("fc2/bias")] if not node.name.startswith("update/")]
    assert [name for name in readers if graph.nodes[name].op == "add"] == ["train/fc2/add", "eval/fc2/add"]
    assert total[0] in graph.nodes["train/fc2/add"].inputs


def test_columns_are_gathered_once_for_all_whole_layers_and_once_for_each_shard() -> None:
    workload = workload_of(read_twice, Momentum())
    graph = Placed(ModelParallel(workers=2, shard={"first": "column", "right": "column"})).build(workload).graph
    for reader, layer in {"left": "left", "shard_0/right": "right/shard_0", "shard_1/right": "right/shard_1"}.items():
        gathered = graph.nodes[graph.nodes[f"train/{reader}/matmul"].inputs[0].node]
        assert (gathered.op, gathered.layer) == ("concat", LayerStamp(layer, "dense"))


def test_workers_without_units_have_no_shard() -> None:
    layers = layers_of(program_of(4, {"fc3": "column"}))
    assert {name for name in layers if "/" in name} == {f"fc3/shard_{j}" for j in range(3)}


def both_ways(held: dict[tuple[int, int], int]) -> Wires:
    """Return the bytes on links between workers: ``held`` values per example forward, and their gradients backward."""
    sent: Wires = Counter()
    for (source, destination), count in held.items():
        if source != destination and count:
            sent[source, destination] += BATCH * B * count
            sent[destination, source] += BATCH * B * count
    return sent


def formula(workers: int, case: str) -> Wires:
    """Return the bytes on every link; layers before the shards are on worker 0, layers after them on worker 1."""
    all_of = range(workers)
    first, second = ([hi - lo for lo, hi in shares(units, workers)] for units in UNITS[:2])
    features = {(0, j): FEATURES for j in all_of}
    rate = Counter({(0, j): B for j in all_of[1:]})
    drawn = Counter({(0, j): B * BATCH + B for j in all_of[1:]})
    if case == "column":
        return both_ways(features) + both_ways({(j, 1): first[j] for j in all_of}) + rate + drawn
    if case == "row":
        summed = {(j, 1): UNITS[1] for j in all_of}
        return both_ways({(0, j): first[j] for j in all_of}) + both_ways(summed) + rate
    if case == "column, row":
        return both_ways(features) + both_ways({(j, 1): UNITS[1] for j in all_of}) + rate + drawn
    assert case == "column, column"
    between = {(i, j): first[i] for i in all_of for j in all_of}
    behind = {(j, 1): second[j] for j in all_of}
    return both_ways(features) + both_ways(between) + both_ways(behind) + rate + drawn


BESIDE = {
    "column": {"fc2": 1, "relu3": 1},
    "row": {"fc1": 0, "relu2": 0, "drop": 0, "relu3": 1},
    "column, row": {"relu3": 1},
    "column, column": {},
}
"""A map case -> layer -> worker, for the dense layers that are not sharded and the layers between them."""


@all_pairs(case=sorted(BESIDE), workers=[2, 4])
def test_every_link_carries_the_bytes_of_the_formula(workers: int, case: str) -> None:
    constraints = {"conv1": 0, "relu1": 0, "pool1": 0, "flat": 0, "fc3": 1, "loss": 1, **BESIDE[case]}
    strategy = Placed(ModelParallel(workers=workers, shard=WAYS[case], constraints=constraints))
    workload = workload_of(hybrid, Momentum())
    program, expected = strategy.build(workload), formula(workers, case)
    assert bytes_on_links(program, near(workers)) == expected
    with begun(strategy, workload) as trainer:
        counted = trainer.sent(range(2))
    assert counted == [2 * nbytes for nbytes in by_sender(expected, workers)]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"shard": {"conv*": "row"}},
            "parallelism.shard: 'conv*': row: no dense layer has this name; the dense layers are fc1, fc2, fc3",
        ),
        (
            {"shard": {"fc*": "row", "fc1": "column"}},
            "parallelism.shard: 'fc1': column: dense layer 'fc1' is already set to row by 'fc*'; expected",
        ),
        (
            {"shard": {"fc2": "row"}, "constraints": {"fc*": 1}},
            "parallelism.constraints: 'fc*': 1: parallelism.shard distributes layer 'fc2' over workers 0 to "
            "1; expected patterns that match none of fc2",
        ),
        (
            {"shard": {"fc1": "column"}, "constraints": {"relu2": 1}},
            "parallelism.shard distributes layer 'relu2' over workers 0 to 1; expected patterns that match none of "
            "fc1, relu2, drop",
        ),
        *(
            (
                {"shard": shard},
                f"parallelism.shard={shard!r}: expected a map from patterns of names of dense layers to column or row",
            )
            for shard in (["fc1"], {"fc1": "both"}, {"fc1": 0}, {1: "row"}, "column", {"fc1": ["row"]})
        ),
    ],
)
def test_impossible_shards_and_constraints_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelParallel(**settings).build(workload_for())
    assert complaint in str(caught.value)
