"""Assignments (what one worker runs of a client of a program): documents, feeds, fetches and transfers."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.cluster.assignment import (
    BELL_BYTES,
    FINISHED,
    Assignment,
    bell_key,
    feed_key,
    feed_sizes,
    fetch_key,
    peer_of,
    senders,
    sent_sizes,
)
from runner.engine.cluster.mailbox import Mailbox, Stopped
from runner.engine.cluster.remote_plan import RemotePlan
from runner.engine.cluster.transport.encoding import decode_document, encode_document
from runner.engine.cluster.transport.messages import MASTER, Message, Shutdown, TensorReady
from runner.engine.cluster.transport.private_directory import private_directory
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaWriter, create_arena
from runner.engine.cluster.wire_rendezvous import WireRendezvous
from runner.engine.compile.program import Client, InputSlot, Program
from runner.engine.graph.device import worker_device
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ClusterError, RunnerError, SecurityError
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeNetwork
from tests.engine.cluster.virtual_cluster import EPOCH, EXAMPLES, plans_of, remote_plan, there_and_back
from tests.engine.compile.plain_data import EXTREMES, mutated, places, put, values, without
from tests.engine.run.fake_kernels import random_registry
from tests.strategies.networks import NETWORKS, workload_of

WORKER_0, WORKER_1 = worker_device(0), worker_device(1)
THERE = f"scaled:0->{WORKER_1}"
X, RATE = "feed/x_0:0", "feed/rate_0:0"
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


@pytest.fixture
def assignments(registry: Registry, tmp_path: Path) -> dict[str, Assignment]:
    return remote_plan(plans_of(there_and_back(), registry), "run", tmp_path).assignments


def test_assignments_contain_the_sizes_and_senders_of_transfers(assignments: dict[str, Assignment]) -> None:
    first, second = assignments["worker-0"], assignments["worker-1"]
    assert feed_sizes(first.plan, first.inputs) == {"feed rate:0": 8}
    assert feed_sizes(first.plan, ()) == {"feed rate:0": 8, "feed x:0": 24}
    assert feed_sizes(second.plan, second.inputs) == {}
    assert sent_sizes(first.plan) == {"scaled:0": 24, "fetch w:0": 24, "fetch back:0": 24}
    assert sent_sizes(second.plan) == {"away:0": 24, "fetch away:0": 24}
    assert senders(first.plan) == {BACK: "worker-1"}
    assert senders(second.plan) == {THERE: "worker-0"}
    assert {owner: (arena.owner, set(arena.sizes)) for owner, arena in second.arenas.items()} == {
        "master-0": ("master-0", {"feed rate:0"}),
        "worker-0": ("worker-0", {"scaled:0", "fetch w:0", "fetch back:0"}),
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


@pytest.fixture
def document(assignments: dict[str, Assignment]) -> Any:
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
        (FEEDS, {"x:0": X}, f"feeds of {X}, expected each placeholder once: {RATE}, {X}"),
        (FEEDS, {"x:0": X, "y:0": X, "rate:0": RATE}, f"feeds of {RATE}, {X}, {X}, expected each"),
        (FEEDS, {"x:0": "scaled:0", "rate:0": RATE}, f"feeds of {RATE}, scaled:0"),
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
        (("arenas",), {}, "arenas of none, expected also arenas of master-0, worker-0, worker-1"),
        (("arenas", "worker-1", "owner"), "worker-2", "the names of their owners: master-0, worker-0, worker-2"),
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


def test_all_workers_get_the_same_arenas_of_the_current_epoch(plan: RemotePlan) -> None:
    first, second = (plan.assignments[worker].arenas for worker in ("worker-0", "worker-1"))
    assert first == second
    assert {owner: arena.name for owner, arena in first.items()} == {
        owner: f"run-0 {owner}" for owner in ("master-0", "worker-0", "worker-1")
    }
    assert {arena.epoch for arena in first.values()} == {EPOCH}


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


KEY = f"x:0->{WORKER_1}"
VALUE = np.arange(4, dtype=np.float32)


class Wire:
    """Two connected workers: worker 0 sends ``x`` and worker 1 receives it. rings: announces it by a doorbell."""

    def __init__(self, directory: Path, *, rings: bool) -> None:
        network = FakeNetwork(0)
        names = ("worker-0", "worker-1")
        self.ends = [network.endpoint(identity(name), len(names)) for name in names]
        for end, other in zip(self.ends, reversed(names), strict=True):
            end.connect(other, "")
        self.master = network.endpoint(identity(MASTER), len(names))
        for name in names:
            self.master.connect(name, "")
        sent = {"x:0": VALUE.nbytes} | ({bell_key(KEY): BELL_BYTES, FINISHED: BELL_BYTES} if rings else {})
        specs = [
            create_arena(directory, f"plan {name}", name, 1, sizes)
            for name, sizes in zip(names, (sent, {FINISHED: BELL_BYTES}), strict=True)
        ]
        received, kernels = {KEY: TensorSpec(VALUE.shape, "float32")}, load_kernels()
        self.sender, self.receiver = (
            WireRendezvous(
                "plan", end, Mailbox(end), ArenaWriter(own), {other.owner: ArenaReader(other)}, received, peers, kernels
            )
            for end, own, other, peers in zip(self.ends, specs, specs[::-1], ([names[1]], []), strict=True)
        )
        self.receiver.mailbox.expect("plan", {KEY: "worker-0"})

    def begin(self, step: int) -> None:
        for end in (self.sender, self.receiver):
            end.begin(step)

    def send(self, message: Message) -> None:
        self.ends[0].send("worker-1", message)


@pytest.fixture(params=[False, True], ids=["message", "doorbell"])
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    with private_directory() as directory:
        yield Wire(directory, rings=request.param)


@pytest.fixture
def bell() -> Iterator[Wire]:
    with private_directory() as directory:
        yield Wire(directory, rings=True)


def test_receiver_reads_the_memory_of_the_sender(wire: Wire) -> None:
    memory = wire.sender.outgoing("x:0", VALUE.nbytes).view(np.float32)
    place = wire.receiver.incoming(KEY, WORKER_0, VALUE.nbytes)
    for step in range(2):
        wire.begin(step)
        memory[:] = VALUE + step
        wire.sender.send(step, KEY, WORKER_1, memory)
        received = wire.receiver.receive(step, KEY, WORKER_0)
        np.testing.assert_array_equal(received, VALUE + step)
        assert np.shares_memory(received, place)
        assert not place.flags.writeable


def test_value_outside_the_arena_is_copied(wire: Wire) -> None:
    value = VALUE.copy()
    wire.begin(0)
    wire.sender.send(0, KEY, WORKER_1, value)
    value[:] = -1.0
    np.testing.assert_array_equal(wire.receiver.receive(0, KEY, WORKER_0), VALUE)


@pytest.mark.parametrize("wire", [False], indirect=True)
def test_reference_to_another_slot_is_refused(wire: Wire) -> None:
    right = wire.sender.writer.put("x:0", VALUE)
    wire.send(TensorReady("plan", 0, KEY, replace(right, offset=64)))
    with pytest.raises(SecurityError, match=r"tensor x:0 of worker-0: reference to .* expected"):
        wire.receiver.receive(0, KEY, WORKER_0)


def test_a_wait_for_a_doorbell_ends_with_a_message_or_a_second_run_of_the_sender(bell: Wire) -> None:
    bell.begin(0)
    bell.master.send("worker-1", Shutdown(reason="the run has ended"))
    with pytest.raises(Stopped, match="the run has ended"):
        bell.receiver.receive(0, KEY, WORKER_0)
    bell.sender.begin(1)
    bell.sender.send(1, KEY, WORKER_1, VALUE)
    with pytest.raises(SecurityError, match=r"'x:0->.*': worker-0 rang for run 2, expected run 1"):
        bell.receiver.receive(0, KEY, WORKER_0)


def test_a_plan_with_doorbells_is_refused_without_machine_code(bell: Wire) -> None:
    bell.receiver.registry = Registry()
    with pytest.raises(RunnerError, match="plan 'plan' has doorbells, but this process cannot compile machine code"):
        bell.receiver.arrival(KEY, WORKER_0)


def test_a_wait_for_a_doorbell_has_a_limit(bell: Wire) -> None:
    time = itertools.count(0.0, 2.4)  # the mailbox is read every 9.6 s, so no gap restarts the limit
    bell.receiver.mailbox = Mailbox(bell.ends[1], lambda: next(time))
    bell.begin(7)
    with pytest.raises(ClusterError, match=r"step 7: 'x:0->.*' did not arrive from worker-0 within 600 s"):
        bell.receiver.receive(7, KEY, WORKER_0)
    assert next(time) < 650


def test_in_a_series_the_sender_waits_until_its_value_has_been_read(bell: Wire) -> None:
    bell.begin(0)
    bell.sender.send(0, KEY, WORKER_1, VALUE)
    bell.sender.finish()
    bell.master.send("worker-0", Shutdown(reason="it waited"))
    with pytest.raises(Stopped, match="it waited"):
        bell.sender.begin(1, first=False)
    np.testing.assert_array_equal(bell.receiver.receive(0, KEY, WORKER_0), VALUE)
    bell.receiver.finish()
    bell.receiver.begin(1, first=False)
    bell.sender.begin(1, first=False)
    bell.sender.send(1, KEY, WORKER_1, VALUE + 1)
    np.testing.assert_array_equal(bell.receiver.receive(1, KEY, WORKER_0), VALUE + 1)


def test_a_doorbell_of_an_interrupted_run_is_not_heard_in_a_later_epoch(bell: Wire) -> None:
    bell.begin(0)
    bell.sender.send(0, KEY, WORKER_1, VALUE)
    for end in (*bell.ends, bell.master):
        end.advance(2)
    for rendezvous in (bell.sender, bell.receiver):
        rendezvous.restart()
    bell.begin(0)
    bell.master.send("worker-1", Shutdown(reason="nothing was heard"))
    with pytest.raises(Stopped, match="nothing was heard"):
        bell.receiver.receive(0, KEY, WORKER_0)
    bell.sender.send(0, KEY, WORKER_1, VALUE + 1)
    np.testing.assert_array_equal(bell.receiver.receive(0, KEY, WORKER_0), VALUE + 1)


def test_transfers_between_processes_that_share_memory_have_doorbells(tmp_path: Path, registry: Registry) -> None:
    """A bell is in the arena of the sender, unless the client may be launched or the receiver has a copy."""
    program = there_and_back()
    client = program.clients["run"]
    planned = plans_of(program, registry)
    compiled, plans = planned.compiled(client.signature), planned.plans(client.signature)

    def bells(client: Client, *sharing: str) -> list[tuple[str, str]]:
        made = (client, compiled, plans, planned.layouts, tmp_path, EPOCH, sharing)
        plan = RemotePlan("plan", *made, rings=True)
        arenas = plan.assignments["worker-0"].arenas
        plan.close()
        return [(owner, key) for owner, spec in arenas.items() for key in spec.sizes if key.startswith("bell")]

    both = [("worker-0", bell_key(f"send/{THERE}")), ("worker-1", bell_key(f"send/{BACK}"))]
    assert [owner for owner, _ in bells(client, "worker-0", "worker-1")] == [owner for owner, _ in both]
    assert bells(client, "worker-0") == []
    assert bells(replace(client, deferred=True), "worker-0", "worker-1") == []


def test_wrong_size_is_refused(wire: Wire) -> None:
    with pytest.raises(ValueError, match="'x:0': memory of 16 bytes, expected 8"):
        wire.sender.outgoing("x:0", 8)
    with pytest.raises(ValueError, match="memory of 16 bytes, expected 24"):
        wire.receiver.incoming(KEY, WORKER_0, 24)
