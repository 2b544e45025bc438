"""Assignments: a round trip preserves them, and malformed or inconsistent documents are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.cluster.assignment import Assignment, feed_sizes, peer_of, senders, sent_sizes
from runner.engine.cluster.transport.documents import decode_document, encode_document
from runner.engine.compile.input_slots import InputSlot
from runner.engine.graph.device import worker_device
from runner.engine.graph.tensor import Tensor
from runner.errors import SecurityError
from runner.kernels.registry import Registry
from runner.optimizers.momentum import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.cluster.remote_programs import plans_of, remote_plan, there_and_back
from tests.engine.compile.plain_data import EXTREMES, mutated, places, put, values, without
from tests.engine.run.fake_kernels import random_registry
from tests.strategies.networks import NETWORKS, task_of

WORKER_0 = worker_device(0)
THERE = f"scaled:0->{worker_device(1)}"
X, RATE = "feed/x_0:0", "feed/rate_0:0"
BACK = f"away:0->{WORKER_0}"


def encoded_and_decoded(document: object) -> object:
    return decode_document(memoryview(encode_document(document)))


def expect_round_trip(network: str, kernels: Registry, directory: Path) -> None:
    program = SyncData(workers=3).build(task_of(NETWORKS[network], Momentum(), batch_size=7))
    planned = plans_of(program, kernels)
    for client in program.clients:
        for assignment in remote_plan(planned, client, directory).assignments.values():
            received = Assignment.from_document(encoded_and_decoded(assignment.to_document()), kernels)
            assert received == assignment
            assert list(received.part.graph.nodes) == list(assignment.part.graph.nodes)


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_training_program_round_trip(network: str, registry: Registry, tmp_path: Path) -> None:
    expect_round_trip(network, registry, tmp_path)


def test_layouts_are_sent_so_that_plans_are_equal(tmp_path: Path) -> None:
    expect_round_trip("batch_normalised", random_registry(1), tmp_path)


@pytest.fixture
def assignments(registry: Registry, tmp_path: Path) -> dict[str, Assignment]:
    return remote_plan(plans_of(there_and_back(), registry), "run", tmp_path).assignments


def test_sizes_and_senders_of_transfers(assignments: dict[str, Assignment]) -> None:
    first, second = assignments["worker-0"], assignments["worker-1"]
    assert feed_sizes(first.plan, first.inputs) == {"feed rate:0": 8}
    assert feed_sizes(first.plan, ()) == {"feed rate:0": 8, "feed x:0": 24}
    assert feed_sizes(second.plan, second.inputs) == {}
    assert sent_sizes(first.plan) == {"scaled:0": 24, "fetch w:0": 24, "fetch back:0": 24}
    assert sent_sizes(second.plan) == {"away:0": 24, "fetch away:0": 24}
    assert senders(first.plan) == {BACK: "worker-1"}
    assert senders(second.plan) == {THERE: "worker-0"}


def test_arena_has_a_place_for_every_value_of_its_owner(assignments: dict[str, Assignment]) -> None:
    arenas = assignments["worker-1"].arenas
    assert {owner: set(arena.sizes) for owner, arena in arenas.items()} == {
        "master-0": {"feed rate:0"},
        "worker-0": {"scaled:0", "fetch w:0", "fetch back:0"},
        "worker-1": {"away:0", "fetch away:0"},
    }
    assert {owner: arena.owner for owner, arena in arenas.items()} == {owner: owner for owner in arenas}
    assert assignments["worker-0"].inputs == (InputSlot(Tensor("x"), "train", "x", 0, 3),)
    assert assignments["worker-1"].inputs == ()


def test_device_runs_in_the_process_of_its_task() -> None:
    assert peer_of(worker_device(3)) == "worker-3"
    for text, expected in {
        "/job:worker": "device '/job:worker': expected a full name such as",
        "/job:worker/task:1/device:cpu": "expected a full name",
        "worker-1": "device 'worker-1': expected '/job:NAME",
        "/job:thief/task:1/device:cpu:0": "peer name 'thief-1'",
    }.items():
        with pytest.raises(ValueError, match=expected):
            peer_of(text)


@pytest.fixture
def document(assignments: dict[str, Assignment]) -> Any:
    return encoded_and_decoded(assignments["worker-0"].to_document())


ARENAS = {"master-0": 0, "worker-0": 1, "worker-1": 2}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("more",), 1, "expected a map with the fields arenas, device, feeds, fetches, graph, inputs, layouts"),
        (("device",), 3, "expected text, got 3"),
        (("device",), "cpu", "device 'cpu': expected '/job:NAME"),
        (("device",), "/job:worker/task:0", "expected a full name"),
        (("device",), worker_device(1), f"node 'feed/x_0' is on '{WORKER_0}', expected {worker_device(1)}"),
        (("graph",), [], "graph document: expected a map with the fields 'format' and 'nodes'"),
        (("graph", "nodes", 0, "op"), "run_shell", "unknown op 'run_shell'"),
        (("graph", "nodes", 0, "device"), "", f"node 'feed/x_0' is on '', expected {WORKER_0}"),
        (("fetches",), "w:0", "fetches: expected a list, got 'w:0'"),
        (("fetches",), [["w:0"]], r"expected text, got \['w:0'\]"),
        (("fetches",), ["w:01"], "tensor reference 'w:01': expected w:1"),
        (("fetches",), ["w:1"], "tensor w:1: node 'w' .* has 1 outputs"),
        (("fetches",), ["ghost:0"], "tensor ghost:0 is not in the graph"),
        (("fetches",), ["back:0"], "the arena of worker-0 does not have the layout of the plan's sends and fetches"),
        (("feeds",), {}, "feeds: expected a list, got {}"),
        (("feeds",), [["x:0", "x:0", "x:0"]], "feeds: expected a list of 2"),
        (("feeds",), [["x:0", X]], f"feeds enter at {X}, expected each placeholder once: {RATE}, {X}"),
        (("feeds",), [["x:0", X], ["y:0", X], ["rate:0", RATE]], f"feeds enter at {RATE}, {X}, {X}, expected each"),
        (("feeds",), [["x:0", X], ["x:0", RATE]], "feeds: x:0, x:0, expected each name once"),
        (("feeds",), [["x:0", "scaled:0"], ["rate:0", RATE]], f"feeds enter at {RATE}, scaled:0"),
        (("inputs",), [["x:0", "train", "x", 0, 3]], "inputs: expected a list of 6"),
        (("inputs",), [["x:0", "train", "z", 0, 3, 1]], "one of x, y, index, mask"),
        (("inputs",), [["x:0", "train", "x", 0, 3.0, 1]], r"expected \[tensor, split"),
        (("inputs",), [["x:0", "train", "x", True, 3, 1]], r"expected \[tensor, split"),
        (("inputs",), [["x:0", "train", "x", 3, 0, 1]], r"expected \[tensor, split"),
        (("inputs",), [["x:0", "train", "x", -1, 2, 1]], r"expected \[tensor, split"),
        (("inputs",), [["x:0", "train", "x", 0, 3, 0]], r"expected \[tensor, split"),
        (("inputs",), [["x:0", "train", "x", 0, 3, True]], r"expected \[tensor, split"),
        (("inputs",), [["x:0", 1, "x", 0, 3, 1]], "expected text, got 1"),
        (("inputs",), [["w:0", "train", "x", 0, 3, 1]], "input w:0: expected one of the feeds x:0, rate:0"),
        (("inputs",), [], "the arena of master-0 does not have the layout of the plan's feeds"),
        (("layouts",), {"w": ["w", "", 24]}, "layouts: expected a list"),
        (("layouts",), [["w", ""]], "layouts: expected a list of 3"),
        (("layouts",), [["w", "", 24.0]], r"layout .* expected \[variable, tag, bytes\]"),
        (("layouts",), [["w", "", True]], r"layout .* expected \[variable, tag, bytes\]"),
        (("layouts",), [["w", "", -1]], r"layout .* expected \[variable, tag, bytes\]"),
        (("layouts",), [[3, "", 24]], "expected text, got 3"),
        (("layouts",), [["w", "", 24], ["w", "", 24]], "layouts: w, w, expected each name once"),
        (("layouts",), [["w", "aB8b", 64]], "plan refused: .* no kernel converts .* from .*'aB8b'"),
        (("arenas",), [], "no arena of master-0, worker-0, worker-1, only of none"),
        (("arenas", ARENAS["worker-1"], "owner"), "worker-2", "no arena of worker-1, only of master-0, worker-0"),
        (("arenas", ARENAS["worker-1"], "owner"), "worker-0", "arenas: master-0, worker-0, worker-0, expected each"),
        (("arenas", ARENAS["worker-0"], "sizes", "scaled:0"), 16, "the arena of worker-0 does not have the layout"),
        (("arenas", ARENAS["worker-1"], "sizes", "away:0"), 16, "the arena of worker-1 has 16 bytes for away:0, .* 24"),
        (("arenas", ARENAS["worker-1"], "sizes"), {}, "the arena of worker-1 has no bytes for away:0, which recv/away"),
        (("arenas", ARENAS["worker-0"], "sizes", "more"), 0, "the arena of worker-0 does not have the layout"),
        (("arenas", ARENAS["master-0"], "sizes", "feed rate:0"), 4, "the arena of master-0 does not have the layout"),
        (("arenas", ARENAS["master-0"], "sizes", "feed rate:0"), -8, "arena refused: .*expected a whole number"),
        (("arenas", ARENAS["master-0"], "path"), None, "arena refused: arena.path: None"),
    ],
)
def test_malformed_document_is_refused(
    document: Any, registry: Registry, path: tuple[Any, ...], value: object, message: str
) -> None:
    assert Assignment.from_document(document, registry).to_document() == document
    with pytest.raises(SecurityError, match=message) as caught:
        Assignment.from_document(put(document, path, value), registry)
    assert "refused" in str(caught.value)


def test_missing_field_is_refused(document: Any, registry: Registry) -> None:
    for field in document:
        with pytest.raises(SecurityError, match="plan refused: expected a map with the fields"):
            Assignment.from_document({name: value for name, value in document.items() if name != field}, registry)


def test_variable_assigned_twice_in_a_step_is_refused(document: Any, registry: Registry) -> None:
    nodes = document["graph"]["nodes"]
    (keep,) = (node for node in nodes if node["name"] == "keep")
    twice = put(document, ("graph", "nodes"), [*nodes, {**keep, "name": "again"}])
    with pytest.raises(SecurityError, match="variable 'w' is assigned by 'keep' and by 'again' in one step"):
        Assignment.from_document(twice, registry)


def expect_refused_or_exact(document: Any, registry: Registry) -> None:
    try:
        assignment = Assignment.from_document(document, registry)
    except SecurityError:
        return
    assert assignment.to_document() == document


def test_extreme_values_are_refused_or_round_trip(document: Any, registry: Registry) -> None:
    for path in places(document):
        if path[0] != "graph":
            for value in EXTREMES:
                expect_refused_or_exact(put(document, path, value), registry)
            if len(path) > 1:
                expect_refused_or_exact(without(document, path), registry)


@pytest.fixture(scope="module")
def sample(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Any:
    plan = remote_plan(plans_of(there_and_back(), registry), "run", tmp_path_factory.mktemp("arenas"))
    return encoded_and_decoded(plan.assignments["worker-0"].to_document())


@settings(max_examples=200)
@given(data=st.data())
def test_mutated_document_is_refused_or_round_trips(sample: Any, registry: Registry, data: st.DataObject) -> None:
    expect_refused_or_exact(data.draw(mutated(sample)), registry)


@given(values)
def test_arbitrary_data_never_raises_another_error(registry: Registry, document: object) -> None:
    with pytest.raises(SecurityError):
        Assignment.from_document(document, registry)
