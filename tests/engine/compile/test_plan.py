"""The plan of a device as data: instructions, slots, places, and properties known before the first step."""

from collections.abc import Sequence

import pytest
from hypothesis import given

from runner.engine.compile.compile import Part, Signature, compile_signature, plan_device
from runner.engine.compile.plan import DevicePlan, Place, Slot
from runner.engine.compile.program import Program
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.kernels.contract import Layout, plain
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.compile.played_memory import play
from tests.engine.graph.random_graphs import Sample, samples
from tests.engine.run.fake_kernels import (
    MASKED,
    REVERSED,
    VIA_PLAIN,
    always,
    converting,
    fake_kernel,
    fake_registry,
    layout,
    random_registry,
    reference_registry,
)
from tests.engine.running import CPU_0, CPU_1
from tests.strategies.networks import NETWORKS, task_of

FOUR = TensorSpec((4,), "float64")


def plan_of(graph: Graph, fetches: Sequence[Tensor], registry: Registry, feeds: Sequence[Tensor] = ()) -> DevicePlan:
    return plan_device(CPU_0, graph, fetches, {tensor: tensor for tensor in feeds}, registry, {})


def parts_of(sample: Sample, registry: Registry) -> dict[str, Part]:
    signature = Signature(tuple(sample.fetches), (), tuple(sample.feeds))
    return dict(compile_signature(sample.graph, signature, local_cluster(sample.devices), registry).parts)


def training_program() -> Program:
    return SyncData(workers=2).build(task_of(NETWORKS["batch_normalised"], Momentum(), batch_size=7))


def training_plans(registry: Registry) -> list[DevicePlan]:
    """The plans of all clients of a real program."""
    program = training_program()
    planned = ProgramPlans(program, local_cluster(2), registry)
    return [plan for client in program.clients.values() for plan in planned.plans(client.signature).values()]


@given(sample=samples())
def test_every_value_of_any_plan_is_where_it_is_read_and_plans_are_pure_functions(
    sample: Sample, registry: Registry
) -> None:
    again = parts_of(sample, registry)
    for device, part in parts_of(sample, registry).items():
        play(part.graph, part.fetches, part.feeds, registry, {}, device)
        assert part.plan(device, registry, {}) == again[device].plan(device, registry, {})


@pytest.mark.parametrize("seed", [None, *range(3)])
def test_every_value_of_a_training_program_is_where_it_is_read(registry: Registry, seed: int | None) -> None:
    program, kernels = training_program(), registry if seed is None else random_registry(seed)
    planned = ProgramPlans(program, local_cluster(2), kernels)
    for client in program.clients.values():
        for device in planned.plans(client.signature):
            part = planned.compiled(client.signature).parts[device]
            play(part.graph, part.fetches, part.feeds, kernels, planned.layouts(device), device)


def test_instructions_read_and_fill_slots_with_places() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (4,), "float64", name="x")
    low, _ = ops.split(graph, x, 0, (1, 3), name="parts")
    twice = ops.add(graph, low, low, name="twice")
    ops.neg(graph, low, name="last")
    plan = plan_of(graph, [twice], reference_registry(), [x])
    assert [(i.node, i.op, i.library, i.inputs, i.outputs) for i in plan.instructions] == [
        ("parts", "split", "numpy", (0,), (1, 2)),
        ("twice", "add", "numpy", (1, 1), (3,)),
        ("last", "neg", "numpy", (1,), (4,)),
    ]
    assert plan.fetches == {twice: 3}
    assert [slot.spec.shape for slot in plan.slots] == [(4,), (1,), (3,), (1,), (1,)]
    assert len(plan.places) == len(plan.slots)
    assert plan.arena_bytes == 3 * 64


def test_feeds_have_tensor_slot_and_spec(registry: Registry) -> None:
    graph = Graph()
    carrier = ops.placeholder(graph, (4,), "float64", name="feed/inner_1")
    ops.neg(graph, carrier)
    (feed,) = plan_device(CPU_0, graph, [], {Tensor("inner", 1): carrier}, registry, {}).feeds
    assert (feed.tensor, feed.slot, feed.spec) == (Tensor("inner", 1), 0, FOUR)


def test_variables_have_separate_memory_outside_the_arena(registry: Registry) -> None:
    graph = Graph()
    w = ops.variable(graph, (1000,), "float64", name="w")
    total = ops.reduce_sum(graph, w, axes=(0,))
    plan = plan_of(graph, [total], registry)
    spec = TensorSpec((1000,), "float64")
    assert plan.variables == {"w": Slot(spec, plain(spec))}
    assert plan.layouts == {"w": Layout("", 8000)}
    assert plan.places[plan.instructions[0].inputs[0]] == Place(0, "w")
    assert (plan.read, plan.arena_bytes) == ({"w"}, 64)


def test_variable_that_is_only_assigned_is_not_read(registry: Registry) -> None:
    graph = Graph()
    x = ops.placeholder(graph, (2,), "float64", name="x")
    w = ops.variable(graph, (2,), "float64", name="w")
    ops.assign(graph, w, x, name="set")
    plan = plan_of(graph, [], registry, [x])
    assert [(i.op, dict(i.attributes), i.inputs) for i in plan.instructions] == [
        ("assign", {"variable": "w"}, (plan.feeds[0].slot,))
    ]
    assert (set(plan.variables), plan.read) == ({"w"}, set())
    assert plan_of(graph, [w], registry, [x]).read == {"w"}


def test_variable_that_is_only_fetched_is_read(registry: Registry) -> None:
    graph = Graph()
    w = ops.variable(graph, (2,), "float64", name="w")
    ops.variable(graph, (2,), "float64", name="v")
    plan = plan_of(graph, [ops.reshape(graph, w, (1, 2))], registry)
    assert (plan.instructions, plan.read) == ((), {"w"})


def test_variable_is_not_read_by_readers_of_its_assigned_value(registry: Registry) -> None:
    graph = Graph()
    w = ops.variable(graph, (4,), "float64", name="w")
    new = ops.assign(graph, w, ops.fill(graph, 1.0, (4,), "float64"), name="set")
    plan = plan_of(graph, [ops.neg(graph, new)], registry)
    assert [each.op for each in plan.instructions] == ["fill", "neg"]
    assert plan.read == set()


def test_plan_lists_the_variables_that_it_writes(registry: Registry) -> None:
    """It writes by an assign or by a kernel that computes in place, not by reads or aliases."""
    graph = Graph()
    fed, counted, seen = (ops.variable(graph, (2,), "float32", name=name) for name in ("fed", "counted", "seen"))
    x = ops.placeholder(graph, (2,), "float32", name="x")
    ops.assign(graph, fed, x)
    ops.assign(graph, counted, ops.square(graph, counted))
    plan = plan_of(graph, [ops.neg(graph, ops.reshape(graph, seen, (1, 2)))], registry, [x])
    assert [each.op for each in plan.instructions if each.op == "assign"] == ["assign"]
    assert (plan.written, plan.read) == ({"fed", "counted"}, {"counted", "seen"})


def test_two_assignments_to_a_variable_in_one_step_are_refused(registry: Registry) -> None:
    graph = Graph()
    w = ops.variable(graph, (2,), "float64", name="w")
    for name in ("one", "two"):
        ops.assign(graph, w, ops.fill(graph, 1.0, (2,), "float64"), name=name)
    with pytest.raises(ShapeError, match="variable 'w' is assigned by 'one' and by 'two' in one step"):
        plan_of(graph, [], registry)


def test_sent_bytes_are_those_of_the_sent_tensors() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (3,), "float32", name="x")
    y = ops.neg(graph, x)
    for key in ("a", "b"):
        ops.send(graph, y, key=key, destination=CPU_1)
    strange = fake_registry(fake_kernel("neg", always(REVERSED, MASKED)), fake_kernel("convert", converting(VIA_PLAIN)))
    assert plan_of(graph, [], strange, [x]).sent_bytes == 2 * 3 * 4


def test_plan_counts_conversions_and_lists_libraries() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (4,), "float64", name="x")
    y = ops.convert(graph, ops.exp(graph, ops.neg(graph, x)))
    strange = fake_registry(fake_kernel("neg", always(REVERSED, MASKED)), fake_kernel("convert", converting(VIA_PLAIN)))
    plan = plan_of(graph, [y], strange, [x])
    assert [each.op for each in plan.instructions] == ["convert", "neg", "convert", "exp", "convert"]
    assert plan.conversions == 2
    assert plan.libraries == {"fake", "numpy"}
    assert [slot.layout for slot in plan.slots] == [layout(tag, FOUR) for tag in ("", REVERSED, MASKED, "", "", "")]


def test_equal_graphs_have_equal_plans(registry: Registry) -> None:
    first, second = (training_plans(registry) for _ in range(2))
    assert first == second


def test_plan_of_a_part_uses_its_fetches_and_feeds(registry: Registry) -> None:
    graph = Graph()
    x = ops.placeholder(graph, (3,), "float64", name="x")
    y = ops.neg(graph, x)
    part = Part(graph, (y,), {x: x})
    assert part.plan(CPU_0, registry, {}) == plan_of(graph, [y], registry, [x])
