"""Assignments (the part of a client that one worker runs): documents, feeds, fetches and transfers."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.cluster.assignment import Assignment, feed_key, feed_sizes, fetch_key, peer_of, senders, sent_sizes
from runner.engine.cluster.remote_plan import RemotePlan
from runner.engine.cluster.transport.encoding import decode_document, encode_document
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaWriter
from runner.engine.compile.program import Client, InputSlot, Program
from runner.engine.graph.device import worker_device
from runner.engine.graph.tensor import Tensor
from runner.errors import RunnerError, SecurityError
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.cluster.virtual_cluster import EXAMPLES, plans_of, remote_plan, there_and_back
from tests.engine.compile.plain_data import EXTREMES, mutated, places, put, values, without
from tests.engine.run.fake_kernels import random_registry
from tests.strategies.networks import NETWORKS, workload_of

WORKER_0, WORKER_1 = worker_device(0), worker_device(1)
X, RATE = "feed/x_0:0", "feed/rate_0:0"
THERE, RATE_THERE = f"{X}->{WORKER_1}", f"{RATE}->{WORKER_1}"
BACK = f"away:0->{WORKER_0}"


def encoded_and_decoded(document: object) -> object:
    return decode_document(memoryview(encode_document(document)))


@pytest.mark.parametrize("network", [*sorted(NETWORKS), "random layouts"])
def test_training_program_round_trip(network: str, registry: Registry, tmp_path: Path) -> None:
    """A document contains the layouts, so the plan that a worker makes from it equals the plan of the master."""
    network, kernels = ("batch_normalised", random_registry(1)) if " " in network else (network, registry)
    program = SyncData(workers=3).build(workload_of(NETWORKS[network], Momentum(), batch_size=7))
    planned = plans_of(program, kernels)
    for client in program.clients:
        for assignment in remote_plan(planned, client, tmp_path).assignments.values():
            received = Assignment.from_document(encoded_and_decoded(assignment.to_document()), kernels)
            assert received == assignment
            assert list(received.part.graph.nodes) == list(assignment.part.graph.nodes)


@pytest.fixture(scope="module")
def assignments(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Assignment]:
    folder = tmp_path_factory.mktemp("arenas")
    return remote_plan(plans_of(there_and_back(), registry), "run", folder).assignments


def test_assignments_contain_the_sizes_and_senders_of_transfers(assignments: Mapping[str, Assignment]) -> None:
    first, second = assignments["worker-0"], assignments["worker-1"]
    assert feed_sizes(first.plan, first.inputs) == {"feed rate:0": 8}
    assert feed_sizes(first.plan, ()) == {"feed rate:0": 8, "feed x:0": 24}
    assert feed_sizes(second.plan, second.inputs) == {}
    assert sent_sizes(first.plan) == {X: 24, "feed/rate_0:0": 8, "fetch w:0": 24, "fetch back:0": 24}
    assert sent_sizes(second.plan) == {"away:0": 24, "fetch away:0": 24}
    assert senders(first.plan) == {BACK: "worker-1"}
    assert senders(second.plan) == {THERE: "worker-0", RATE_THERE: "worker-0"}
    assert {owner: (arena.owner, set(arena.sizes)) for owner, arena in second.arenas.items()} == {
        "master-0": ("master-0", {"feed rate:0"}),
        "worker-0": ("worker-0", {X, "feed/rate_0:0", "fetch w:0", "fetch back:0"}),
        "worker-1": ("worker-1", {"away:0", "fetch away:0"}),
    }
    assert first.inputs == (InputSlot(Tensor("x"), "train", "x", 0, 3),)
    assert second.inputs == ()


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("/job:worker", "device '/job:worker': expected a full name such as"),
        ("/job:worker/task:1/device:cpu", "expected a full name"),
        ("worker-1", "device 'worker-1': expected '/job:NAME"),
        ("/job:thief/task:1/device:cpu:0", "peer name 'thief-1'"),
    ],
)
def test_device_name_without_a_process_is_refused(device: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        peer_of(device)


@pytest.fixture(scope="module")
def document(assignments: Mapping[str, Assignment]) -> Any:
    return encoded_and_decoded(assignments["worker-0"].to_document())


GRAPH, FETCHES, FEEDS = (("part", field) for field in ("graph", "fetches", "feeds"))
LIMIT = "expected a list of at most 65536"
SLOT = ("inputs", 0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("more",), 1, r"plan: unknown \['more'\], expected the fields device, part, inputs, arenas"),
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
        (FEEDS, {"x:0": X}, f"feeds {X}: expected each placeholder once, {RATE}, {X}"),
        (FEEDS, {"x:0": X, "y:0": X, "rate:0": RATE}, f"feeds {RATE}, {X}, {X}: expected each"),
        (FEEDS, {"x:0": "w:0", "rate:0": RATE}, f"feeds {RATE}, w:0"),
        (SLOT, ["x:0", "train"], r"plan.inputs\[0\]: .* expected a map"),
        ((*SLOT, "field"), 7, r"plan.inputs\[0\].field: 7, expected text"),
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
        (("arenas",), {}, "arenas of none: the arenas of master-0, worker-0, worker-1 are missing"),
        (("arenas", "worker-1", "owner"), "worker-2", "the names of their owners: master-0, worker-0, worker-2"),
        (("arenas", "worker-0", "sizes", X), 16, "the arena of worker-0 does not have the layout"),
        (("arenas", "worker-1", "sizes", "away:0"), 16, "the arena of worker-1 has 16 bytes for away:0, .* 24"),
        (("arenas", "worker-1", "sizes"), {}, "the arena of worker-1 has no bytes for away:0, which recv/away"),
        (("arenas", "worker-0", "sizes", "more"), 0, "the arena of worker-0 does not have the layout"),
        (("arenas", "master-0", "sizes", "feed rate:0"), 4, "the arena of master-0 does not have the layout"),
        (("arenas", "master-0", "sizes", "feed rate:0"), -8, r"sizes\[feed rate:0\]: -8, expected a whole number"),
        (("arenas", "master-0", "path"), None, r"plan.arenas\[master-0\].path: None"),
    ],
)
def test_malformed_document_is_refused(document: Any, registry: Registry, path: Any, value: Any, message: str) -> None:
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
    with suppress(SecurityError):
        assert Assignment.from_document(document, registry).to_document() == document


def test_extreme_values_are_refused_or_round_trip(document: Any, registry: Registry) -> None:
    for path in places(document):
        if path[:2] != GRAPH:
            for value in EXTREMES:
                expect_refused_or_exact(put(document, path, value), registry)
            if len(path) > 1:
                expect_refused_or_exact(without(document, path), registry)


@settings(max_examples=200)
@given(data=st.data())
def test_mutated_document_is_refused_or_round_trips(document: Any, registry: Registry, data: st.DataObject) -> None:
    expect_refused_or_exact(data.draw(mutated(document)), registry)


@given(values)
def test_arbitrary_data_raises_no_other_error(registry: Registry, document: object) -> None:
    with pytest.raises(SecurityError):
        Assignment.from_document(document, registry)


RATE, OLD, AWAY = Tensor("rate"), Tensor("w"), Tensor("away")


@pytest.fixture
def plan(tmp_path: Path, registry: Registry) -> RemotePlan:
    return remote_plan(plans_of(there_and_back(), registry), "run", tmp_path, name="run-0")


def test_only_workers_with_nodes_participate(tmp_path: Path, registry: Registry, plan: RemotePlan) -> None:
    init = remote_plan(plans_of(there_and_back(), registry), "init", tmp_path)
    assert (set(init.plans), set(init.assignments)) == ({"worker-0"}, {"worker-0"})
    assert (set(plan.plans), set(plan.assignments)) == ({"worker-0", "worker-1"}, {"worker-0", "worker-1"})
    nothing = Program(there_and_back().graph, {"nothing": Client("nothing")}, {}, workers=2)
    assert remote_plan(plans_of(nothing, registry), "nothing", tmp_path).assignments == {}


def test_all_workers_get_the_same_arenas(plan: RemotePlan) -> None:
    first, second = (plan.assignments[worker].arenas for worker in ("worker-0", "worker-1"))
    assert first == second
    names = {owner: arena.name for owner, arena in first.items()}
    assert names == {owner: f"run-0 {owner}" for owner in ("master-0", "worker-0", "worker-1")}


def test_worker_reads_its_feeds(plan: RemotePlan) -> None:
    plan.feed({RATE: np.float64(0.25), Tensor("unused"): "whatever"})
    arena = ArenaReader(plan.assignments["worker-0"].arenas["master-0"])
    assert arena.read(feed_key(RATE), "float64", ()) == 0.25


@pytest.mark.parametrize(
    ("value", "came"),
    [
        (np.float32(0.5), r"float32\[\]"),
        (1, r"int64\[\]"),
        ([0.5], r"float64\[1\]"),
        (np.zeros((2, 3)), r"float64\[2, 3\]"),
        ("half", r"str\d+\[\]"),
    ],
)
def test_feed_of_wrong_shape_or_dtype_is_named(plan: RemotePlan, value: Any, came: str) -> None:
    with pytest.raises(RunnerError, match=rf"^feed rate:0: got {came}, expected float64\[\]$"):
        plan.feed({RATE: value})


@pytest.mark.parametrize(("tensor", "worker"), [(OLD, "worker-0"), (AWAY, "worker-1")])
def test_fetch_returns_a_copy(plan: RemotePlan, tensor: Tensor, worker: str) -> None:
    arena = ArenaWriter(plan.assignments[worker].arenas[worker])
    arena.put(fetch_key(tensor), np.arange(float(EXAMPLES)))
    fetched = plan.fetch(tensor)
    arena.put(fetch_key(tensor), np.zeros(EXAMPLES))
    assert fetched.tolist() == [0.0, 1.0, 2.0]
    assert fetched.flags.writeable


def test_arenas_leave_no_files_and_work_after_the_plan_is_closed(plan: RemotePlan, tmp_path: Path) -> None:
    spec = plan.assignments["worker-1"].arenas["worker-1"]
    arena = ArenaWriter(spec)
    assert list(tmp_path.iterdir()) == []
    plan.close()
    with pytest.raises(SecurityError, match="cannot open"):
        ArenaReader(spec)
    arena.put(fetch_key(AWAY), np.ones(EXAMPLES))
    assert plan.fetch(AWAY).tolist() == [1.0, 1.0, 1.0]


def test_transfers_between_processes_that_share_memory_have_doorbells(tmp_path: Path, registry: Registry) -> None:
    """A bell is in the arena of the sender, unless the client may be launched or the receiver has a copy."""
    program = there_and_back()
    client = program.clients["run"]
    planned = plans_of(program, registry)
    compiled, plans = planned.compiled(client.signature), planned.plans(client.signature)

    def bells(client: Client, *sharing: str) -> list[str]:
        """Return the owners of the arenas with bells."""
        made = (client, compiled, plans, planned.layouts, tmp_path, sharing)
        plan = RemotePlan("plan", *made, rings=True)
        arenas = plan.assignments["worker-0"].arenas
        plan.close()
        return [owner for owner, spec in arenas.items() for key in spec.sizes if key.startswith("bell")]

    assert bells(client, "worker-0", "worker-1") == ["worker-0", "worker-0", "worker-1"]
    assert bells(client, "worker-0") == []
    assert bells(replace(client, deferred=True), "worker-0", "worker-1") == []
