"""What a worker is handed: nothing is lost on the way, and nothing gets in that could not be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.assignment import Assignment, feed_sizes, peer_of, senders, sent_sizes
from runner.engine.device import worker_device
from runner.engine.inputs import InputSlot
from runner.engine.tensor import Tensor
from runner.engine.transport.documents import decode_document, encode_document
from runner.errors import SecurityError
from runner.kernels.registry import Registry
from runner.optimizers.momentum import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.fake_kernels import whimsical_registry
from tests.engine.plain_data import EXTREMES, mutated, places, put, values, without
from tests.engine.remote_programs import plans_of, remote_plan, there_and_back
from tests.strategies.networks import NETWORKS, task_of

WORKER_0 = worker_device(0)
THERE = f"scaled:0->{worker_device(1)}"
X, RATE = "feed/x_0:0", "feed/rate_0:0"
BACK = f"away:0->{WORKER_0}"


def through_the_wire(document: object) -> object:
    return decode_document(memoryview(encode_document(document)))


def expect_to_survive_the_wire(network: str, kernels: Registry, directory: Path) -> None:
    program = SyncData(workers=3).build(task_of(NETWORKS[network], Momentum(), batch_size=7))
    planned = plans_of(program, kernels)
    for client in program.clients:
        for assignment in remote_plan(planned, client, directory).assignments.values():
            received = Assignment.from_document(through_the_wire(assignment.to_document()), kernels)
            assert received == assignment
            assert list(received.part.graph.nodes) == list(assignment.part.graph.nodes)


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_every_part_of_a_training_program_survives_the_wire(network: str, registry: Registry, tmp_path: Path) -> None:
    expect_to_survive_the_wire(network, registry, tmp_path)


def test_layouts_travel_with_a_part_so_that_its_plan_is_the_same(tmp_path: Path) -> None:
    expect_to_survive_the_wire("batch_normalised", whimsical_registry(1), tmp_path)


@pytest.fixture
def assignments(registry: Registry, tmp_path: Path) -> dict[str, Assignment]:
    return remote_plan(plans_of(there_and_back(), registry), "run", tmp_path).assignments


def test_what_moves_where_in_how_many_bytes(assignments: dict[str, Assignment]) -> None:
    first, second = assignments["worker-0"], assignments["worker-1"]
    assert feed_sizes(first.plan, first.inputs) == {"feed rate:0": 8}
    assert feed_sizes(first.plan, ()) == {"feed rate:0": 8, "feed x:0": 24}
    assert feed_sizes(second.plan, second.inputs) == {}
    assert sent_sizes(first.plan) == {"scaled:0": 24, "fetch w:0": 24, "fetch back:0": 24}
    assert sent_sizes(second.plan) == {"away:0": 24, "fetch away:0": 24}
    assert senders(first.plan) == {BACK: "worker-1"}
    assert senders(second.plan) == {THERE: "worker-0"}


def test_an_arena_has_room_for_what_its_owner_says(assignments: dict[str, Assignment]) -> None:
    arenas = assignments["worker-1"].arenas
    assert {owner: set(arena.sizes) for owner, arena in arenas.items()} == {
        "master-0": {"feed rate:0"},
        "worker-0": {"scaled:0", "fetch w:0", "fetch back:0"},
        "worker-1": {"away:0", "fetch away:0"},
    }
    assert {owner: arena.owner for owner, arena in arenas.items()} == {owner: owner for owner in arenas}
    assert assignments["worker-0"].inputs == (InputSlot(Tensor("x"), "train", "x", 0, 3),)
    assert assignments["worker-1"].inputs == ()


def test_a_device_is_run_by_the_peer_of_its_task() -> None:
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
    return through_the_wire(assignments["worker-0"].to_document())


ARENAS = {"master-0": 0, "worker-0": 1, "worker-1": 2}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("more",), 1, "expected a map with the fields arenas, device, feeds, fetches, graph, inputs, layouts"),
        (("device",), 3, "expected text, came 3"),
        (("device",), "cpu", "device 'cpu': expected '/job:NAME"),
        (("device",), "/job:worker/task:0", "expected a full name"),
        (("device",), worker_device(1), f"node 'feed/x_0' is on '{WORKER_0}', expected {worker_device(1)}"),
        (("graph",), [], "graph document: expected a map with the fields 'format' and 'nodes'"),
        (("graph", "nodes", 0, "op"), "run_shell", "unknown op 'run_shell'"),
        (("graph", "nodes", 0, "device"), "", f"node 'feed/x_0' is on '', expected {WORKER_0}"),
        (("fetches",), "w:0", "fetches: expected a list, came 'w:0'"),
        (("fetches",), [["w:0"]], r"expected text, came \['w:0'\]"),
        (("fetches",), ["w:01"], "tensor reference 'w:01': expected w:1"),
        (("fetches",), ["w:1"], "tensor w:1: node 'w' .* has 1 outputs"),
        (("fetches",), ["ghost:0"], "tensor ghost:0 is not in the graph"),
        (("fetches",), ["back:0"], "the arena of worker-0 is not laid out for what the plan sends and fetches"),
        (("feeds",), {}, "feeds: expected a list, came {}"),
        (("feeds",), [["x:0", "x:0", "x:0"]], "feeds: expected a list of 2"),
        (("feeds",), [["x:0", X]], f"feeds enter at {X}, expected each placeholder once: {RATE}, {X}"),
        (("feeds",), [["x:0", X], ["y:0", X], ["rate:0", RATE]], f"feeds enter at {RATE}, {X}, {X}, expected each"),
        (("feeds",), [["x:0", X], ["x:0", RATE]], "feeds: x:0, x:0, expected no name twice"),
        (("feeds",), [["x:0", "scaled:0"], ["rate:0", RATE]], f"feeds enter at {RATE}, scaled:0"),
        (("inputs",), [["x:0", "train", "x", 0, 3]], "inputs: expected a list of 6"),
        (("inputs",), [["x:0", "train", "z", 0, 3, 1]], "one of x, y, index, mask"),
        (("inputs",), [["x:0", "train", "x", 0, 3.0, 1]], r"expected \[tensor, split"),
        (("inputs",), [["x:0", "train", "x", True, 3, 1]], r"expected \[tensor, split"),
        (("inputs",), [["x:0", "train", "x", 3, 0, 1]], r"expected \[tensor, split"),
        (("inputs",), [["x:0", "train", "x", -1, 2, 1]], r"expected \[tensor, split"),
        (("inputs",), [["x:0", "train", "x", 0, 3, 0]], r"expected \[tensor, split"),
        (("inputs",), [["x:0", "train", "x", 0, 3, True]], r"expected \[tensor, split"),
        (("inputs",), [["x:0", 1, "x", 0, 3, 1]], "expected text, came 1"),
        (("inputs",), [["w:0", "train", "x", 0, 3, 1]], "input w:0: expected one of the feeds x:0, rate:0"),
        (("inputs",), [], "the arena of master-0 is not laid out for what the plan is fed"),
        (("layouts",), {"w": ["w", "", 24]}, "layouts: expected a list"),
        (("layouts",), [["w", ""]], "layouts: expected a list of 3"),
        (("layouts",), [["w", "", 24.0]], r"layout .* expected \[variable, tag, bytes\]"),
        (("layouts",), [["w", "", True]], r"layout .* expected \[variable, tag, bytes\]"),
        (("layouts",), [["w", "", -1]], r"layout .* expected \[variable, tag, bytes\]"),
        (("layouts",), [[3, "", 24]], "expected text, came 3"),
        (("layouts",), [["w", "", 24], ["w", "", 24]], "layouts: w, w, expected no name twice"),
        (("layouts",), [["w", "aB8b", 64]], "plan refused: .* no kernel converts .* from .*'aB8b'"),
        (("arenas",), [], "no arena of master-0, worker-0, worker-1, only of nobody"),
        (("arenas", ARENAS["worker-1"], "owner"), "worker-2", "no arena of worker-1, only of master-0, worker-0"),
        (("arenas", ARENAS["worker-1"], "owner"), "worker-0", "arenas: master-0, worker-0, worker-0, expected no"),
        (("arenas", ARENAS["worker-0"], "sizes", "scaled:0"), 16, "the arena of worker-0 is not laid out"),
        (("arenas", ARENAS["worker-1"], "sizes", "away:0"), 16, "the arena of worker-1 has 16 bytes for away:0, .* 24"),
        (("arenas", ARENAS["worker-1"], "sizes"), {}, "the arena of worker-1 has no bytes for away:0, which recv/away"),
        (("arenas", ARENAS["worker-0"], "sizes", "more"), 0, "the arena of worker-0 is not laid out"),
        (("arenas", ARENAS["master-0"], "sizes", "feed rate:0"), 4, "the arena of master-0 is not laid out"),
        (("arenas", ARENAS["master-0"], "sizes", "feed rate:0"), -8, "arena refused: .*expected a whole number"),
        (("arenas", ARENAS["master-0"], "path"), None, "arena refused: arena.path: None"),
    ],
)
def test_deviations_are_refused_with_what_came_and_what_was_expected(
    document: Any, registry: Registry, path: tuple[Any, ...], value: object, message: str
) -> None:
    assert Assignment.from_document(document, registry).to_document() == document
    with pytest.raises(SecurityError, match=message) as caught:
        Assignment.from_document(put(document, path, value), registry)
    assert "refused" in str(caught.value)


def test_a_field_that_is_missing_is_refused(document: Any, registry: Registry) -> None:
    for field in document:
        with pytest.raises(SecurityError, match="plan refused: expected a map with the fields"):
            Assignment.from_document({name: value for name, value in document.items() if name != field}, registry)


def test_a_variable_assigned_twice_in_a_step_is_refused(document: Any, registry: Registry) -> None:
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


def test_extremes_anywhere_are_refused_or_mean_exactly_what_they_say(document: Any, registry: Registry) -> None:
    for path in places(document):
        if path[0] != "graph":
            for value in EXTREMES:
                expect_refused_or_exact(put(document, path, value), registry)
            if len(path) > 1:
                expect_refused_or_exact(without(document, path), registry)


@pytest.fixture(scope="module")
def sample(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Any:
    plan = remote_plan(plans_of(there_and_back(), registry), "run", tmp_path_factory.mktemp("arenas"))
    return through_the_wire(plan.assignments["worker-0"].to_document())


@settings(max_examples=200)
@given(data=st.data())
def test_a_mutated_document_is_refused_or_means_exactly_what_it_says(
    sample: Any, registry: Registry, data: st.DataObject
) -> None:
    expect_refused_or_exact(data.draw(mutated(sample)), registry)


@given(values)
def test_no_data_at_all_breaks_the_reader(registry: Registry, document: object) -> None:
    with pytest.raises(SecurityError):
        Assignment.from_document(document, registry)
