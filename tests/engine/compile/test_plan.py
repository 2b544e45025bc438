"""Plans as data: instructions, slots, places and layouts; the training step decides the layouts of variables."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.compile import program_plans
from runner.engine.compile.compile import compile_signature
from runner.engine.compile.passes.order_writes import order_writes
from runner.engine.compile.plan import DevicePlan, Place, Slot
from runner.engine.compile.planner import Part, small_updates_last
from runner.engine.compile.program import Client, InputSlot, Program, Signature
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph import Graph, Tensor, TensorSpec, local_cluster, ops
from runner.errors import RunnerError
from runner.kernels.contract import Layout, plain
from runner.kernels.registry import Registry
from runner.optimizers import Momentum
from runner.strategies import SyncData
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
from tests.engine.running import CPU_0, CPU_1, client
from tests.strategies.networks import NETWORKS, workload_of

STRANGE = fake_registry(fake_kernel("neg", always(REVERSED, MASKED)), fake_kernel("convert", converting(VIA_PLAIN)))


def plan_of(text: str, fetch: str, registry: Registry) -> DevicePlan:
    """Return the plan of a float64 graph in which every placeholder is fed."""
    parsed = Text.parse(text, "float64")
    feeds = {node[0]: node[0] for node in parsed.graph if node.op == "placeholder"}
    return Part(parsed.graph, tuple(parsed.names(fetch)), feeds).plan(CPU_0, registry, {})


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
    plans, equal = (ProgramPlans(each, local_cluster(2), kernels) for each in (program, again))
    for name, each in program.clients.items():
        assert plans.plans(each.signature) == equal.plans(again.clients[name].signature)
        for device in plans.plans(each.signature):
            part = plans.compiled(each.signature).parts[device]
            play(part.graph, part.fetches, part.feeds, kernels, plans.layouts(device), device)


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
    plan = Part(text.graph, (y,), feeds).plan(CPU_0, registry, {})
    (feed,) = plan.feeds
    assert (feed.tensor, feed.slot, feed.spec) == (Tensor("inner", 1), 0, TensorSpec((4,), "float64"))


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


def test_plan_lists_libraries_and_the_layout_of_each_slot() -> None:
    plan = plan_of("x = input(4); n = neg(x); e = exp(n); y = convert(e)", "y", STRANGE)
    assert [each.op for each in plan.instructions] == ["convert", "neg", "convert", "exp", "convert"]
    assert plan.libraries == {"fake", "numpy"}
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
        assert set(node.needed) <= done
        done.add(node.name)


def test_updates_that_other_nodes_need_and_nodes_that_update_no_variable_do_not_move() -> None:
    graph = training(a=3)
    ops.reduce_sum(graph, graph.nodes["a_assign"][0], name="of_the_new_value")
    assert names(small_updates_last(graph)) == names(graph)
    graph = Text.parse(f"value = input(3); fetched = elementwise(value, {HALF}); other = identity(value)").graph
    assert names(small_updates_last(graph)) == names(graph)


SPEC = TensorSpec((2,), "float64")


def two_weights() -> Graph:
    """Return the graph of CLIENTS: ``train`` computes tanh(w) and exp(v), ``other`` computes exp(w) and exp(v)."""
    graph = Graph()
    for name, op in (("w", ops.tanh), ("v", ops.exp)):
        variable = ops.variable(graph, SPEC.shape, SPEC.dtype, name=name)
        ops.assign(graph, variable, ops.fill(graph, 1.0, SPEC.shape, SPEC.dtype), name=f"init/{name}")
        ops.assign(graph, variable, op(graph, variable), name=f"update/{name}")
        ops.exp(graph, variable, name=f"other/{name}")
    return graph


CLIENTS = {
    "init": client("init", targets=["init/w", "init/v"]),
    "train": client("train", targets=["update/w", "update/v"]),
    "other": client("other", [Tensor("other/w"), Tensor("other/v")]),
    "save": client("save", [Tensor("w"), Tensor("v")]),
}
LAYOUTS = {"w": layout(REVERSED, SPEC), "v": layout(MASKED, SPEC)}


def strange() -> Registry:
    return fake_registry(
        fake_kernel("tanh", always(REVERSED, REVERSED)),
        fake_kernel("exp", always(MASKED, MASKED)),
        fake_kernel("convert", converting(VIA_PLAIN)),
    )


def planned(registry: Registry, **clients: Client) -> ProgramPlans:
    return ProgramPlans(Program(two_weights(), clients, {}, workers=1), local_cluster(1), registry)


@pytest.mark.parametrize("first", sorted(CLIENTS))
def test_training_step_decides_layouts_whichever_client_is_planned_first(first: str) -> None:
    plans = planned(strange(), **CLIENTS)
    for name in (first, *CLIENTS):
        (plan,) = plans.plans(CLIENTS[name].signature).values()
        assert plan.layouts == LAYOUTS
        assert plans.layouts(CPU_0) == LAYOUTS


def test_other_clients_convert_variables_to_the_layouts_they_request() -> None:
    plans = planned(strange(), **CLIENTS)
    instructions = {name: plans.plans(each.signature)[CPU_0].instructions for name, each in CLIENTS.items()}
    # Filled values are plain; w is converted to the layout of exp through the plain layout; fetches are plain.
    conversions = {name: [i.op for i in own].count("convert") for name, own in instructions.items()}
    assert conversions == {"init": 2, "train": 0, "other": 2 + 2, "save": 2}


def test_first_plan_decides_layouts_if_no_client_trains() -> None:
    plans = planned(strange(), other=CLIENTS["other"], init=CLIENTS["init"])
    assert plans.layouts(CPU_0) == {}
    plans.plans(CLIENTS["init"].signature)
    plain = {name: layout("", SPEC) for name in LAYOUTS}
    assert plans.layouts(CPU_0) == plain
    assert plans.plans(CLIENTS["other"].signature)[CPU_0].layouts == plain


def test_training_step_decides_no_layout_of_variables_that_it_does_not_use() -> None:
    half = client("train", targets=["update/w"])
    plans = planned(strange(), train=half, other=CLIENTS["other"])
    plans.plans(half.signature)
    assert plans.layouts(CPU_0) == {"w": LAYOUTS["w"]}
    assert plans.plans(CLIENTS["other"].signature)[CPU_0].layouts == LAYOUTS


def test_signature_is_compiled_and_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Signature] = []
    compile_placed: Callable[..., Any] = program_plans.compile_placed

    def counting(graph: Graph, signature: Signature, *rest: Any, **more: Any) -> Any:
        compiled.append(signature)
        return compile_placed(graph, signature, *rest, **more)

    monkeypatch.setattr(program_plans, "compile_placed", counting)
    plans = planned(strange(), **CLIENTS)
    for name in ("save", "train", "save", "train"):
        signature = CLIENTS[name].signature
        assert plans.plans(signature) is plans.plans(signature)
        assert plans.compiled(signature) is plans.compiled(signature)
    assert compiled == [CLIENTS["train"].signature, CLIENTS["save"].signature]


def test_layouts_are_decided_per_device() -> None:
    graph = Graph()
    for device, name, op in ((CPU_0, "w", ops.tanh), (CPU_1, "v", ops.exp)):
        with graph.device(device):
            variable = ops.variable(graph, SPEC.shape, SPEC.dtype, name=name)
            op(graph, variable, name=f"of/{name}")
    train = client("train", [Tensor("of/w"), Tensor("of/v")])
    plans = ProgramPlans(Program(graph, {"train": train}, {}, workers=2), local_cluster(2), strange())
    assert set(plans.plans(train.signature)) == {CPU_0, CPU_1}
    assert plans.layouts(CPU_0) == {"w": LAYOUTS["w"]}
    assert plans.layouts(CPU_1) == {"v": LAYOUTS["v"]}


def test_two_deferred_clients_of_one_plan_are_refused() -> None:
    push, other = (replace(client(name, targets=["update/w"]), deferred=True) for name in ("push", "other"))
    expected = (
        "^clients 'push' and 'other' are deferred and run the same nodes with the same fetches and feeds: give each "
        "client separate nodes, or launch only one of the clients$"
    )
    with pytest.raises(RunnerError, match=expected):
        planned(strange(), push=push, other=other)
    planned(strange(), push=push, other=replace(other, deferred=False))


def expect_layouts_to_reproduce_plans(program: Program, registry: Registry) -> None:
    """Expect that a part has the same plan if it is planned again with the layouts of all variables given."""
    plans = ProgramPlans(program, local_cluster(program.workers), registry)
    for each in program.clients.values():
        parts = plans.compiled(each.signature).parts
        for device, plan in plans.plans(each.signature).items():
            assert parts[device].plan(device, registry, plans.layouts(device)) == plan


PROGRAMS: Mapping[str, Program] = {
    f"{name} {dtype}": SyncData(workers=2).build(workload_of(network, Momentum(), batch_size=6, dtype=dtype))
    for name, network in NETWORKS.items()
    for dtype in ("float32", "float64")
}


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_layouts_reproduce_the_plans_that_decided_them(name: str, registry: Registry) -> None:
    expect_layouts_to_reproduce_plans(PROGRAMS[name], registry)


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(sorted(PROGRAMS)))
def test_layouts_reproduce_plans_with_random_kernels(seed: int, name: str) -> None:
    expect_layouts_to_reproduce_plans(PROGRAMS[name], random_registry(seed))


def test_steps_that_share_a_batch_read_its_parts_in_order() -> None:
    slot = InputSlot(Tensor("x"), "train", "x", 1, 4, parts=3)
    assert [slot.share(step) for step in range(2, 7)] == [
        ("train", 0, 7, 10),
        ("train", 1, 1, 4),
        ("train", 1, 4, 7),
        ("train", 1, 7, 10),
        ("train", 2, 1, 4),
    ]
