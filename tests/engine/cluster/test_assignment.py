"""Assignments: a round trip preserves them, and malformed or inconsistent documents are refused."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.cluster.assignment import Assignment, feed_sizes, peer_of, senders, sent_sizes
from runner.engine.cluster.transport.documents import decode_document, encode_document
from runner.engine.compile.program import InputSlot
from runner.engine.graph.device import worker_device
from runner.engine.graph.tensor import Tensor
from runner.errors import SecurityError
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
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


GRAPH, FETCHES, FEEDS = (("part", field) for field in ("graph", "fetches", "feeds"))
LIMIT = "expected a list of at most 65536"
SLOT = ("inputs", 0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("more",),
            1,
            r"plan: unknown \['more'\], expected the fields device, part, inputs, arenas",
        ),
        (("device",), 3, "plan.device: 3, expected text"),
        (("device",), "cpu", "device 'cpu': expected '/job:NAME"),
        (("device",), "/job:worker/task:0", "expected a full name"),
        (("device",), worker_device(1), f"node 'feed/x_0' is on '{WORKER_0}', expected {worker_device(1)}"),
        (GRAPH, {}, "graph document: {}, expected a list"),
        ((*GRAPH, 0, "op"), "run_shell", "unknown op 'run_shell'"),
        ((*GRAPH, 0, "device"), "", f"node 'feed/x_0' is on '', expected {WORKER_0}"),
        (FETCHES, "w:0", f"plan.part.fetches: 'w:0', {LIMIT}"),
        (FETCHES, [["w:0"]], r"plan.part.fetches\[0\]: \['w:0'\], expected text"),
        (FETCHES, ["w:01"], "tensor reference 'w:01', expected w:1"),
        (FETCHES, ["w:1"], "tensor w:1: node 'w' .* has 1 outputs"),
        (FETCHES, ["ghost:0"], "tensor ghost:0 is not in the graph"),
        (FETCHES, ["back:0"], "the arena of worker-0 does not have the layout of the plan's sends and fetches"),
        (FEEDS, [], r"plan.part.feeds: \[\], expected a map"),
        (FEEDS, {"x:0": "x"}, "tensor reference 'x': expected 'node:port'"),
        (FEEDS, {"x:0": X}, f"feeds enter at {X}, expected each placeholder once: {RATE}, {X}"),
        (FEEDS, {"x:0": X, "y:0": X, "rate:0": RATE}, f"feeds enter at {RATE}, {X}, {X}, expected each"),
        (FEEDS, {"x:0": "scaled:0", "rate:0": RATE}, f"feeds enter at {RATE}, scaled:0"),
        (SLOT, ["x:0", "train"], r"plan.inputs\[0\]: .* expected a map"),
        ((*SLOT, "field"), "z", r"plan.inputs\[0\].field: 'z', expected one of x, y, index, mask"),
        ((*SLOT, "hi"), 3.0, r"plan.inputs\[0\].hi: 3.0, expected a whole number"),
        ((*SLOT, "lo"), True, r"plan.inputs\[0\].lo: True, expected a whole number"),
        ((*SLOT, "lo"), 4, "input x:0: examples 4 to 3, expected an ascending range"),
        ((*SLOT, "lo"), -1, r"plan.inputs\[0\].lo: -1, expected a whole number from 0"),
        ((*SLOT, "parts"), 0, r"plan.inputs\[0\].parts: 0, expected a whole number from 1"),
        ((*SLOT, "split"), 1, r"plan.inputs\[0\].split: 1, expected text"),
        ((*SLOT, "tensor"), "w:0", "input w:0: expected one of the feeds x:0, rate:0"),
        (("inputs",), [], "the arena of master-0 does not have the layout of the plan's feeds"),
        (("layouts",), [["w", "", 24]], "plan.layouts: .* expected a map"),
        (("layouts",), {"w": {"tag": ""}}, r"plan.layouts\[w\]: missing \['nbytes'\]"),
        *(
            (("layouts",), {"w": {"tag": "", "nbytes": nbytes}}, r"plan.layouts\[w\].nbytes: .* a whole number from 0")
            for nbytes in (24.0, True, -1)
        ),
        (("layouts",), {3: {"tag": "", "nbytes": 24}}, "name in plan.layouts: 3, expected text"),
        (("layouts",), {"w": {"tag": "aB8b", "nbytes": 64}}, "no kernel converts .* from .*'aB8b'"),
        (("arenas",), {}, "no arena of master-0, worker-0, worker-1, only of none"),
        (
            ("arenas", "worker-1", "owner"),
            "worker-2",
            "arenas of master-0, worker-0, worker-2 under the names",
        ),
        (("arenas", "worker-0", "sizes", "scaled:0"), 16, "the arena of worker-0 does not have the layout"),
        (("arenas", "worker-1", "sizes", "away:0"), 16, "the arena of worker-1 has 16 bytes for away:0, .* 24"),
        (("arenas", "worker-1", "sizes"), {}, "the arena of worker-1 has no bytes for away:0, which recv/away"),
        (("arenas", "worker-0", "sizes", "more"), 0, "the arena of worker-0 does not have the layout"),
        (("arenas", "master-0", "sizes", "feed rate:0"), 4, "the arena of master-0 does not have the layout"),
        (("arenas", "master-0", "sizes", "feed rate:0"), -8, r"sizes\[feed rate:0\]: -8, expected a whole number"),
        (("arenas", "master-0", "path"), None, r"plan.arenas\[master-0\].path: None"),
    ],
)
def test_malformed_document_is_refused(
    document: Any, registry: Registry, path: tuple[Any, ...], value: object, message: str
) -> None:
    assert Assignment.from_document(document, registry).to_document() == document
    with pytest.raises(SecurityError, match=f"^plan refused: .*{message}"):
        Assignment.from_document(put(document, path, value), registry)


def test_missing_field_is_refused(document: Any, registry: Registry) -> None:
    for field in document:
        with pytest.raises(SecurityError, match="plan refused: plan: missing"):
            Assignment.from_document({name: value for name, value in document.items() if name != field}, registry)


def test_variable_assigned_twice_in_a_step_is_refused(document: Any, registry: Registry) -> None:
    nodes = document["part"]["graph"]
    (keep,) = (node for node in nodes if node["name"] == "keep")
    twice = put(document, GRAPH, [*nodes, {**keep, "name": "again"}])
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
        if path[:2] != GRAPH:
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
