"""The plan of a device as data: instructions, slots, places, and properties that are known before the first step."""

import numpy as np
import pytest
from hypothesis import given

from runner.engine.compile.compile import Part, Signature, compile_signature
from runner.engine.compile.passes.order_writes import order_writes
from runner.engine.compile.passes.rewriting import needed_by
from runner.engine.compile.plan import DevicePlan, Place, Slot
from runner.engine.compile.planner import plan_device, small_updates_last
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.kernels.contract import Layout, plain
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.compile.passes.graph_text import Text
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
from tests.engine.running import CPU_0, CPU_1, Bench
from tests.strategies.networks import NETWORKS, workload_of

STRANGE = fake_registry(fake_kernel("neg", always(REVERSED, MASKED)), fake_kernel("convert", converting(VIA_PLAIN)))


def plan_of(text: str, fetch: str, registry: Registry) -> DevicePlan:
    """Return the plan of a float64 graph in which every placeholder is fed."""
    parsed = Text.parse(text, "float64")
    feeds = {node[0]: node[0] for node in parsed.graph if node.op == "placeholder"}
    return plan_device(CPU_0, parsed.graph, parsed.names(fetch), feeds, registry, {})


def parts_of(sample: Sample, registry: Registry) -> dict[str, Part]:
    signature = Signature(tuple(sample.fetches), (), tuple(sample.feeds))
    return dict(compile_signature(sample.graph, signature, local_cluster(sample.devices), registry).parts)


@given(sample=samples())
def test_plans_of_random_graphs_keep_values_until_they_are_read_and_are_reproducible(
    sample: Sample, registry: Registry
) -> None:
    again = parts_of(sample, registry)
    for device, part in parts_of(sample, registry).items():
        play(part.graph, part.fetches, part.feeds, registry, {}, device)
        assert part.plan(device, registry, {}) == again[device].plan(device, registry, {})


@pytest.mark.parametrize("seed", [None, *range(3)])
def test_training_plans_keep_values_until_they_are_read_and_equal_programs_have_equal_plans(
    registry: Registry, seed: int | None
) -> None:
    kernels = registry if seed is None else random_registry(seed)
    program, again = (
        SyncData(workers=2).build(workload_of(NETWORKS["batch_normalised"], Momentum(), batch_size=7)) for _ in range(2)
    )
    planned, equal = (ProgramPlans(each, local_cluster(2), kernels) for each in (program, again))
    for name, client in program.clients.items():
        assert planned.plans(client.signature) == equal.plans(again.clients[name].signature)
        for device in planned.plans(client.signature):
            part = planned.compiled(client.signature).parts[device]
            play(part.graph, part.fetches, part.feeds, kernels, planned.layouts(device), device)


def test_instructions_read_and_write_slots_and_each_slot_has_a_place() -> None:
    text = "x = input(4); low, high = split(x, axis=0, sizes=(1, 3)); twice = add(low, low); last = neg(low)"
    plan = plan_of(text, "twice", reference_registry())
    assert [(i.node, i.op, i.library, i.inputs, i.outputs) for i in plan.instructions] == [
        ("low", "split", "numpy", (0,), (1, 2)),
        ("twice", "add", "numpy", (1, 1), (3,)),
        ("last", "neg", "numpy", (1,), (4,)),
    ]
    assert plan.fetches == {Tensor("twice"): 3}
    assert [slot.spec.shape for slot in plan.slots] == [(4,), (1,), (3,), (1,), (1,)]
    assert (len(plan.places), plan.arena_bytes) == (len(plan.slots), 3 * 64)


def test_feed_of_a_plan_has_a_tensor_a_slot_and_a_spec(registry: Registry) -> None:
    text = Text.parse("feed__inner_1 = input(4); y = neg(feed__inner_1)", "float64")
    carrier, y = text.names("feed/inner_1 y")
    feeds = {Tensor("inner", 1): carrier}
    plan = plan_device(CPU_0, text.graph, [y], feeds, registry, {})
    (feed,) = plan.feeds
    assert (feed.tensor, feed.slot, feed.spec) == (Tensor("inner", 1), 0, TensorSpec((4,), "float64"))
    assert Part(text.graph, (y,), feeds).plan(CPU_0, registry, {}) == plan


def test_variables_have_separate_memory_outside_the_arena(registry: Registry) -> None:
    plan = plan_of("w = weights(1000); total = reduce_sum(w, axes=(0,))", "total", registry)
    spec = TensorSpec((1000,), "float64")
    assert plan.variables == {"w": Slot(spec, plain(spec))}
    assert plan.layouts == {"w": Layout("", 8000)}
    assert plan.places[plan.instructions[0].inputs[0]] == Place(0, "w")
    assert (plan.read, plan.arena_bytes) == ({"w"}, 64)


@pytest.mark.parametrize(
    ("text", "fetch", "instructions", "read", "written"),
    [
        ("s = assign(w, x)", "", "assign", "", "w"),
        ("s = assign(w, x)", "w", "convert assign", "w", "w"),
        ("r = reshape(w, shape=(1, 2)); v = weights(2)", "r", "", "w", ""),
        ("n = exp(x); s = assign(w, n); y = neg(s)", "y", "exp neg", "", "w"),
        ("f = weights(2, dtype='float32'); n = square(f); s = assign(f, n)", "", "square", "f", "f"),
        ("r = reshape(w, shape=(1, 2)); y = neg(r)", "y", "neg", "w", ""),
    ],
)
def test_plan_lists_the_variables_that_it_reads_and_writes(
    text: str, fetch: str, instructions: str, read: str, written: str, registry: Registry
) -> None:
    plan = plan_of(f"x = input(2); w = weights(2); {text}", fetch, registry)
    assert " ".join(each.op for each in plan.instructions) == instructions
    assert (plan.read, plan.written) == (set(read.split()), set(written.split()))


def test_sent_bytes_are_the_bytes_of_all_sends() -> None:
    sends = "; ".join(f"{key} = send(y, key='{key}', destination='{CPU_1}')" for key in ("a", "b"))
    assert plan_of(f"x = input(3, dtype='float32'); y = neg(x); {sends}", "", STRANGE).sent_bytes == 2 * 3 * 4


def test_plan_counts_conversions_and_lists_libraries() -> None:
    plan = plan_of("x = input(4); n = neg(x); e = exp(n); y = convert(e)", "y", STRANGE)
    assert [each.op for each in plan.instructions] == ["convert", "neg", "convert", "exp", "convert"]
    assert (plan.conversions, plan.libraries) == (2, {"fake", "numpy"})
    tags = ("", REVERSED, MASKED, "", "", "")
    assert [slot.layout for slot in plan.slots] == [layout(tag, TensorSpec((4,), "float64")) for tag in tags]


HALF = "program='mul 0 #0.5', outputs=(1,)"
SIZES = {"a": 3, "b": 4000, "c": 5}


def training(**sizes: int) -> Graph:
    """Return a chain of products, each with a separate variable, which is updated right after the product."""
    layers = (
        f"""{name} = weights({size}); {name}_product = mul({name}, {before}); {name}_sum = reduce_sum({name}_product,
        axes=(0,)); {name}_update = elementwise({name}, {HALF}); {name}_assign = assign({name}, {name}_update)"""
        for (name, size), before in zip(sizes.items(), ("value", *(f"{name}_sum" for name in sizes)), strict=False)
    )
    return Text.parse("value = input(); " + "; ".join(layers).replace("\n", " ")).graph


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph]


def test_small_updates_move_to_the_end_in_order_and_after_the_nodes_they_need() -> None:
    graph = order_writes(training(**SIZES))
    late = small_updates_last(graph, small_bytes=100)
    assert names(late)[-4:] == ["a_update", "a_assign", "c_update", "c_assign"]
    assert [name for name in names(graph) if name not in names(late)[-4:]] == names(late)[:-4]
    done: set[str] = set()
    for node in late:
        assert set(needed_by(node)) <= done
        done.add(node.name)


def test_updates_that_other_nodes_need_and_nodes_that_update_no_variable_do_not_move() -> None:
    graph = training(a=3)
    ops.reduce_sum(graph, graph.nodes["a_assign"][0], name="of_the_new_value")
    assert names(small_updates_last(graph)) == names(graph)
    graph = Text.parse(f"value = input(3); fetched = elementwise(value, {HALF}); other = identity(value)").graph
    assert names(small_updates_last(graph)) == names(graph)


def test_step_with_late_updates_computes_the_same_values(registry: Registry) -> None:
    found = []
    for late in (False, True):
        graph = order_writes(training(**SIZES))
        bench = Bench(small_updates_last(graph, 100) if late else graph, registry, [Tensor("c_sum")])
        for name, size in SIZES.items():
            bench.put(name, np.arange(1, size + 1, dtype=np.float32))
        results = [bench.run({Tensor("value"): np.float32(1.5)})[Tensor("c_sum")] for _ in range(3)]
        found.append([*results, *(bench.value(name) for name in "abc")])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
