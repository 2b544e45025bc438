"""Large dense layers compute weight gradients within updates and store none; a LeNet step is one fused call group."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from runner import nn
from runner.engine.compile.passes.fusion_rules import SMALLEST_BYTES
from runner.engine.compile.plan import DevicePlan, Instruction
from runner.engine.graph import OPS, NetworkBuilder, Outputs
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.session import scalar
from runner.kernels.contract import NativeCall
from runner.kernels.cpu.loading import register_onednn
from runner.kernels.cpu.machine_code import classification, compiler, elementwise, sums
from runner.kernels.registry import Registry
from runner.models import LeNet
from runner.optimizers import Momentum
from runner.strategies import Single, SyncData, Workload
from runner.tasks.classification import Classification
from tests.strategies.networks import CLASSES, Batch, workload_of
from tests.strategies.training import begun, expect_same_run, opened, trained

INNER, COLUMNS = 1100, 1000
STEPS = 3
TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-3}
"""Tolerances relative to the largest weight: the compared kernels sum the gradients of biases in different orders."""


def two_layers(net: NetworkBuilder, batch: Batch, inner: int = INNER, columns: int = COLUMNS) -> Outputs:
    """Build a large dense layer whose input also has a gradient, between two smaller ones."""
    h = nn.flatten(net, batch["x"], name="flat")
    h = nn.relu(net, nn.dense(net, h, inner, name="fc1"), name="relu1")
    h = nn.relu(net, nn.dense(net, h, columns, name="fc2"), name="relu2")
    return Classification().score(net, nn.dense(net, h, CLASSES, name="fc3"), batch)


def workload(dtype: str) -> Workload:
    return workload_of(two_layers, Momentum(weight_decay=1e-3), batch_size=6, dtype=dtype)


def even_workload(microbatches: int = 1) -> Workload:
    """Return a workload whose large layer has weights with dimensions that are multiples of 32."""
    even = partial(two_layers, inner=1056, columns=1024)
    return workload_of(even, Momentum(), batch_size=24, microbatches=microbatches, dtype="bfloat16")


@pytest.fixture(scope="module")
def in_pieces() -> Registry:
    """Return a registry without the kernel that computes a product within an update."""
    registry = Registry()
    register_onednn(registry)
    for family in (classification, elementwise, sums):
        family.register(registry)
    registry.join = compiler.join
    for op, definition in OPS.items():
        if definition.executed_by == "kernel":
            registry.add(load_kernels().find(op, "cpu", "numpy"))
    return registry


@pytest.mark.parametrize("made", [workload("float32"), workload("bfloat16"), even_workload()])
def test_weights_equal_those_of_separate_updates(in_pieces: Registry, made: Workload) -> None:
    (fused, _), (apart, _) = (trained(Single(), made, STEPS, registry=each) for each in (None, in_pieces))
    start, _ = trained(Single(), made, 0)
    assert list(fused) == list(apart)
    for name, weights in apart.items():
        tolerance = TOLERANCE[made.dtype] * np.abs(weights).max()
        assert np.abs(fused[name] - weights).max() <= tolerance, name
        assert np.abs(start[name] - weights).max() > 10 * tolerance, f"{name} did not move"


def train_plan(dtype: str, registry: Registry | None = None) -> DevicePlan:
    with opened(Single(), workload(dtype), registry=registry) as trainer:
        (plan,) = trainer.session.plans("train").values()
    return plan


def of_large_weights(plan: DevicePlan) -> list[Instruction]:
    """Return the instructions with an output that has the shape of the large weights."""
    shape = (INNER, COLUMNS)
    return [each for each in plan.instructions if any(plan.slots[slot].spec.shape == shape for slot in each.outputs)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_instruction_writes_the_gradient(dtype: str) -> None:
    plan = train_plan(dtype)
    writers = of_large_weights(plan)
    casts = ["cast"] * (dtype == "bfloat16")
    assert sorted(each.op for each in writers) == [*casts, "matmul_elementwise"]
    assert INNER * COLUMNS * 4 >= SMALLEST_BYTES
    update = writers[-1]
    assert (update.op, update.library) == ("matmul_elementwise", "llvm")


@pytest.mark.parametrize(
    "workload_of_parts",
    [
        even_workload,
        *(
            partial(workload_of, two_layers, Momentum(), batch_size=96, dtype=dtype)
            for dtype in ("float32", "bfloat16")
        ),
    ],
    ids=["even", "float32", "bfloat16"],
)
def test_workers_and_microbatches_have_equal_bits(workload_of_parts: Callable[..., Workload]) -> None:
    connected = trained(SyncData(workers=2), workload_of_parts(), 1)
    expect_same_run(connected, trained(Single(), workload_of_parts(microbatches=2), 1))


def test_weights_and_velocity_are_updated_in_place() -> None:
    plan = train_plan("float32")
    (update,) = of_large_weights(plan)
    homes = [plan.places[slot] for slot in update.outputs]
    assert all(place.variable for place in homes)
    assert len(set(homes)) == 2
    read = [plan.places[slot] for slot in update.inputs]
    assert set(homes) <= set(read[2:])
    assert not any(place.variable for place in read[:2])
    assert "assign" not in {each.op for each in plan.instructions}
    # The gradient of the input reads the weights before they change.
    large = {slot for slot, each in enumerate(plan.slots) if each.spec.shape == (INNER, COLUMNS)}
    readers = [
        each for each in plan.instructions if {plan.places[slot] for slot in large & set(each.inputs)} & set(homes)
    ]
    assert [each.op for each in readers] == ["matmul_fused", "matmul", "matmul_elementwise"]


def test_the_arena_has_no_room_for_the_gradient(in_pieces: Registry) -> None:
    fused, apart = (train_plan("float32", each).arena_bytes for each in (None, in_pieces))
    assert fused < math.prod((INNER, COLUMNS)) * 4 <= apart


def test_gradients_that_workers_sum_are_stored() -> None:
    strategy = SyncData(workers=2)
    with opened(strategy, workload("float32")) as trainer:
        plans = trainer.session.plans("train").values()
    assert "matmul_elementwise" not in {each.op for plan in plans for each in plan.instructions}


LOSS_ONLY = "loss_only"
"""Name of a client that trains and fetches only the loss."""


def lenet(net: NetworkBuilder, batch: Batch) -> Outputs:
    return Classification().score(net, LeNet().forward(net, batch["x"], 10), batch)


def watched(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each run of a fused call group appends its number of calls."""
    runs: list[int] = []
    join = registry.join

    def noting(calls: Sequence[NativeCall]) -> Callable[[], int]:
        together = join(calls)

        def run() -> int:
            runs.append(len(calls))
            return together()

        return run

    monkeypatch.setattr(registry, "join", noting)
    return runs


def test_a_step_of_lenet_is_one_fused_call_group(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = watched(registry, monkeypatch)
    workload = workload_of(lenet, Momentum(), batch_size=1, dtype="float32", example_shape=(1, 28, 28))
    train = Single().build(workload).clients["train"]
    step = replace(train, name=LOSS_ONLY, fetches={"loss": train.fetches["loss"]})
    fed = {"step": scalar(0, "int64"), "learning_rate": scalar(0.1, "float32")}
    with begun(Single(), workload, **{LOSS_ONLY: step}) as trainer:
        trainer.session.run(LOSS_ONLY, feeds=fed)
        runs.clear()
        trainer.session.run(LOSS_ONLY, feeds=fed)
        (plan,) = trainer.session.plans(LOSS_ONLY).values()
    # A ``fill`` has the same value in all steps, so it need not be computed in every step.
    computed = [instruction for instruction in plan.instructions if instruction.op != "fill"]
    assert len(runs) == 1
    assert len(computed) <= runs[0] <= len(plan.instructions)
