"""Plans of the clients of a program: the training step decides the layouts of variables for all clients."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.compile import program_plans
from runner.engine.compile.compile import Signature
from runner.engine.compile.program import Client, InputSlot, Program
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.errors import RunnerError
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
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
)
from tests.engine.running import CPU_0, CPU_1, client
from tests.strategies.networks import NETWORKS, workload_of

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
    conversions = {name: plans.plans(each.signature)[CPU_0].conversions for name, each in CLIENTS.items()}
    # Filled values are plain; w is converted to the layout of exp through the plain layout; fetches are plain.
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


def test_unknown_client_is_refused_with_the_list_of_clients() -> None:
    plans = planned(strange(), **CLIENTS)
    assert plans.client("save") is CLIENTS["save"]
    with pytest.raises(RunnerError, match="client 'predict': expected one of init, other, save, train"):
        plans.client("predict")


def test_two_deferred_clients_of_one_plan_are_refused() -> None:
    push, other = (replace(client(name, targets=["update/w"]), deferred=True) for name in ("push", "other"))
    expected = (
        "^clients 'push' and 'other' are deferred and run the same nodes with the same fetches and feeds: give each "
        "its own nodes, or launch one of them$"
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


def test_step_reads_the_batch_with_the_number_of_the_step() -> None:
    slot = InputSlot(Tensor("x"), "train", "x", 3, 7)
    assert [slot.share(step) for step in (0, 5)] == [("train", 0, 3, 7), ("train", 5, 3, 7)]


def test_steps_that_share_a_batch_read_its_parts_in_order() -> None:
    slot = InputSlot(Tensor("x"), "train", "x", 1, 4, parts=3)
    assert [slot.share(step) for step in range(2, 7)] == [
        ("train", 0, 7, 10),
        ("train", 1, 1, 4),
        ("train", 1, 4, 7),
        ("train", 1, 7, 10),
        ("train", 2, 1, 4),
    ]
