"""What a device does in a step, as data: slots, lifetimes and what they cost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given

from runner.engine import ops
from runner.engine.compile import Part, Signature, compile_signature
from runner.engine.device import local_cluster
from runner.engine.graph import Graph
from runner.engine.op import ShapeError
from runner.engine.plan import DevicePlan, plan_device
from runner.engine.tensor import Tensor, TensorSpec
from runner.kernels.registry import Registry
from runner.optimizers.momentum import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.random_graphs import Sample, samples
from tests.engine.running import CPU_0, CPU_1
from tests.strategies.networks import NETWORKS, task_of


def plan_of(graph: Graph, fetches: Sequence[Tensor], feeds: Sequence[Tensor] = ()) -> DevicePlan:
    return plan_device(CPU_0, graph, fetches, {tensor: tensor for tensor in feeds})


def plans_of(sample: Sample, registry: Registry) -> list[DevicePlan]:
    signature = Signature(tuple(sample.fetches), (), tuple(sample.feeds))
    parts = compile_signature(sample.graph, signature, local_cluster(sample.devices), registry).parts
    return [part.plan(device) for device, part in parts.items()]


def training_plans(registry: Registry) -> list[DevicePlan]:
    """The plans of all clients of a real program."""
    program = SyncData(workers=2).build(task_of(NETWORKS["batch_normalised"], Momentum(), batch_size=7))
    compiled = [
        compile_signature(program.graph, client.signature, local_cluster(2), registry)
        for client in program.clients.values()
    ]
    return [part.plan(device) for each in compiled for device, part in each.parts.items()]


def live_through(plan: DevicePlan) -> list[set[int]]:
    """Play a plan with sets; returns the slots that hold a value during each instruction, and at the end."""
    alive = {feed.slot for feed in plan.feeds}
    moments = [set(alive)]
    for instruction in plan.instructions:
        assert set(instruction.inputs) <= alive, f"{instruction.node} reads an empty slot"
        assert not set(instruction.outputs) & alive, f"{instruction.node} fills a slot that is in use"
        alive |= set(instruction.outputs)
        moments.append(set(alive))
        assert set(instruction.release) <= alive, f"{instruction.node} empties an empty slot"
        alive -= set(instruction.release)
    moments.append(alive)
    return moments


def check_lifetimes(plan: DevicePlan) -> None:
    moments = live_through(plan)
    read = {slot for instruction in plan.instructions for slot in instruction.inputs}
    unread_feeds = {feed.slot for feed in plan.feeds} - read
    assert moments[-1] == set(plan.fetches.values()) | unread_feeds
    stored = {slot for each in plan.instructions if each.op == "variable" for slot in each.outputs}
    sizes = [sum(plan.specs[slot].nbytes for slot in alive - stored) for alive in moments]
    assert plan.peak_bytes == max(sizes)


@given(sample=samples())
def test_slots_live_from_birth_to_last_use_and_the_peak_is_what_that_costs(sample: Sample, registry: Registry) -> None:
    for plan in plans_of(sample, registry):
        check_lifetimes(plan)


def test_slots_of_a_real_program_live_from_birth_to_last_use(registry: Registry) -> None:
    for plan in training_plans(registry):
        check_lifetimes(plan)


def test_a_slot_is_released_by_its_last_reader_and_an_unread_output_at_once() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (4,), "float64", name="x")
    low, _ = ops.split(graph, x, 0, (1, 3), name="parts")
    twice = ops.add(graph, low, low, name="twice")
    ops.neg(graph, low, name="last")
    plan = plan_of(graph, [twice], [x])
    assert [(i.node, i.inputs, i.outputs, i.release) for i in plan.instructions] == [
        ("parts", (0,), (1, 2), (0, 2)),
        ("twice", (1, 1), (3,), ()),
        ("last", (1,), (4,), (1, 4)),
    ]
    assert plan.fetches == {twice: 3}
    assert plan.peak_bytes == 8 * (4 + 1 + 3)


def test_feeds_say_tensor_slot_and_spec() -> None:
    graph = Graph()
    carrier = ops.placeholder(graph, (4,), "float64", name="feed/inner_1")
    ops.neg(graph, carrier)
    (feed,) = plan_device(CPU_0, graph, [], {Tensor("inner", 1): carrier}).feeds
    assert (feed.tensor, feed.slot, feed.spec) == (Tensor("inner", 1), 0, TensorSpec((4,), "float64"))


def test_variables_are_resident_and_do_not_count_as_the_step_s_memory() -> None:
    graph = Graph()
    w = ops.variable(graph, (1000,), "float64", name="w")
    total = ops.reduce_sum(graph, w, axes=(0,))
    plan = plan_of(graph, [total])
    assert plan.variables == {"w": TensorSpec((1000,), "float64")}
    assert plan.peak_bytes == 8


def test_a_variable_that_is_only_assigned_is_not_read() -> None:
    graph = Graph()
    w = ops.variable(graph, (2,), "float64", name="w")
    ops.assign(graph, w, ops.fill(graph, 1.0, (2,), "float64"), name="set")
    plan = plan_of(graph, [])
    assert [instruction.op for instruction in plan.instructions] == ["fill", "assign"]
    assert dict(plan.instructions[1].attributes) == {"variable": "w"}
    assert plan.instructions[1].inputs == plan.instructions[0].outputs
    assert "variable" in [each.op for each in plan_of(graph, [w]).instructions]


def test_two_assignments_to_a_variable_in_one_step_are_refused() -> None:
    graph = Graph()
    w = ops.variable(graph, (2,), "float64", name="w")
    for name in ("one", "two"):
        ops.assign(graph, w, ops.fill(graph, 1.0, (2,), "float64"), name=name)
    with pytest.raises(ShapeError, match="variable 'w' is assigned by 'one' and by 'two' in one step"):
        plan_of(graph, [])


def test_sent_bytes_are_those_of_the_tensors_sent() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (3,), "float32", name="x")
    for key in ("a", "b"):
        ops.send(graph, x, key=key, destination=CPU_1)
    assert plan_of(graph, [], [x]).sent_bytes == 2 * 3 * 4


def test_equal_graphs_have_equal_plans(registry: Registry) -> None:
    first, second = (training_plans(registry) for _ in range(2))
    assert first == second


@given(sample=samples())
def test_a_plan_is_a_function_of_its_part(sample: Sample, registry: Registry) -> None:
    assert plans_of(sample, registry) == plans_of(sample, registry)


def test_a_part_plans_itself_with_its_fetches_and_feeds() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (3,), "float64", name="x")
    y = ops.neg(graph, x)
    part = Part(graph, (y,), {x: x})
    assert part.plan(CPU_0) == plan_of(graph, [y], [x])
