"""Large dense layers: the gradient of their weights is part of the update and is not stored."""

import math

import numpy as np
import pytest

from runner import nn
from runner.engine.compile.passes.fusion_rules import SMALLEST_BYTES
from runner.engine.compile.plan import DevicePlan, Instruction
from runner.engine.graph.network import NetworkBuilder, Outputs
from runner.engine.graph.op import OPS
from runner.kernels.cpu.loading import register_onednn
from runner.kernels.cpu.machine_code import classification, compiler, elementwise, rows
from runner.kernels.registry import REGISTRY, Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.base import Task
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData
from tests.strategies.networks import CLASSES, Batch, task_of
from tests.strategies.training import expect_same_bits, opened, trained

INNER, COLUMNS = 1100, 1000
STEPS = 3
TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-3}
"""Relative to the largest weight. Gradients of biases are summed in another order by another kernel."""


def wide(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Two layers, a large one whose input has a gradient too, and another."""
    h = nn.flatten(net, batch["x"], name="flat")
    h = nn.relu(net, nn.dense(net, h, INNER, name="fc1"), name="relu1")
    h = nn.relu(net, nn.dense(net, h, COLUMNS, name="fc2"), name="relu2")
    return nn.classify(net, nn.dense(net, h, CLASSES, name="fc3"), batch["y"])


def task(dtype: str) -> Task:
    return task_of(wide, Momentum(weight_decay=1e-3), batch_size=6, dtype=dtype)


@pytest.fixture(scope="module")
def in_pieces() -> Registry:
    """All kernels but the one that computes a product within an update."""
    registry = Registry()
    register_onednn(registry)
    for family in (classification, elementwise, rows):
        family.register(registry)
    registry.join = compiler.join
    for op, definition in OPS.items():
        if definition.executed_by == "kernel":
            registry.add(REGISTRY.find(op, "cpu", "numpy"))
    return registry


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_those_of_a_step_in_pieces(registry: Registry, in_pieces: Registry, dtype: str) -> None:
    fused, _ = trained(Single(), task(dtype), registry, STEPS)
    apart, _ = trained(Single(), task(dtype), in_pieces, STEPS)
    start, _ = trained(Single(), task(dtype), registry, 0)
    assert list(fused) == list(apart)
    for name, weights in apart.items():
        largest = np.abs(weights).max()
        assert np.abs(fused[name] - weights).max() <= TOLERANCE[dtype] * largest, name
        assert np.abs(start[name] - weights).max() > 10 * TOLERANCE[dtype] * largest, f"{name} did not move"


def train_plan(dtype: str, registry: Registry) -> DevicePlan:
    with opened(Single(), task(dtype), registry) as trainer:
        (plan,) = trainer.session.plans("train").values()
    return plan


def of_large_weights(plan: DevicePlan) -> list[Instruction]:
    """The instructions with an output of the large weights' shape."""
    shape = (INNER, COLUMNS)
    return [each for each in plan.instructions if any(plan.slots[slot].spec.shape == shape for slot in each.outputs)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_instruction_writes_the_gradient(registry: Registry, dtype: str) -> None:
    plan = train_plan(dtype, registry)
    writers = of_large_weights(plan)
    casts = ["cast"] * (dtype == "bfloat16")
    assert sorted(each.op for each in writers) == [*casts, "matmul_elementwise"]
    assert INNER * COLUMNS * 4 >= SMALLEST_BYTES
    update = writers[-1]
    assert (update.op, update.library) == ("matmul_elementwise", "llvm")


def even(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Two layers: the extents of a large one are multiples of 32."""
    h = nn.relu(net, nn.dense(net, nn.flatten(net, batch["x"], name="flat"), 1056, name="fc1"), name="relu1")
    h = nn.relu(net, nn.dense(net, h, 1024, name="fc2"), name="relu2")
    return nn.classify(net, nn.dense(net, h, CLASSES, name="fc3"), batch["y"])


def even_task(microbatches: int = 1) -> Task:
    return task_of(even, Momentum(), batch_size=24, microbatches=microbatches, dtype="bfloat16")


def test_even_layers_train_as_in_pieces(registry: Registry, in_pieces: Registry) -> None:
    (fused, _), (apart, _) = (trained(Single(), even_task(), each, STEPS) for each in (registry, in_pieces))
    for name, weights in apart.items():
        assert np.abs(fused[name] - weights).max() <= TOLERANCE["bfloat16"] * np.abs(weights).max(), name


def test_workers_and_microbatches_of_even_layers_have_equal_bits(registry: Registry) -> None:
    connected, _ = trained(SyncData(workers=2), even_task(), registry, STEPS)
    in_turn, _ = trained(Single(), even_task(microbatches=2), registry, STEPS)
    expect_same_bits(connected, in_turn)


def test_weights_and_velocity_are_updated_where_they_live(registry: Registry) -> None:
    plan = train_plan("float32", registry)
    (update,) = of_large_weights(plan)
    homes = [plan.places[slot] for slot in update.outputs]
    assert all(place.variable for place in homes)
    assert len(set(homes)) == 2
    read = [plan.places[slot] for slot in update.inputs]
    assert set(homes) <= set(read[2:])
    assert not any(place.variable for place in read[:2])
    assert "assign" not in {each.op for each in plan.instructions}


def test_the_gradient_of_the_input_reads_the_weights_before_they_change(registry: Registry) -> None:
    plan = train_plan("float32", registry)
    (update,) = of_large_weights(plan)
    weights = {plan.places[slot] for slot in update.outputs}
    readers = [each.op for each in plan.instructions if weights & {plan.places[slot] for slot in _large(plan, each)}]
    assert readers == ["matmul_fused", "matmul", "matmul_elementwise"]


def _large(plan: DevicePlan, instruction: Instruction) -> list[int]:
    """Inputs of the large weights' shape."""
    return [slot for slot in instruction.inputs if plan.slots[slot].spec.shape == (INNER, COLUMNS)]


def test_the_arena_has_no_room_for_the_gradient(registry: Registry, in_pieces: Registry) -> None:
    fused, apart = (train_plan("float32", each).arena_bytes for each in (registry, in_pieces))
    assert fused < math.prod((INNER, COLUMNS)) * 4 <= apart


def test_gradients_summed_by_workers_are_kept(registry: Registry) -> None:
    strategy = SyncData(workers=2)
    with opened(strategy, task("float32"), registry) as trainer:
        plans = trainer.session.plans("train").values()
    assert "matmul_elementwise" not in {each.op for plan in plans for each in plan.instructions}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_workers_and_microbatches_compute_equal_parts_of_a_gradient(registry: Registry, dtype: str) -> None:
    def batch_of_96(microbatches: int) -> Task:
        return task_of(wide, Momentum(), batch_size=96, microbatches=microbatches, dtype=dtype)

    connected, _ = trained(SyncData(workers=2), batch_of_96(1), registry, 1)
    in_turn, _ = trained(Single(), batch_of_96(2), registry, 1)
    expect_same_bits(connected, in_turn)
