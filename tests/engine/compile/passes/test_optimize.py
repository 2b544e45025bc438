"""All passes together change a graph, but not its values."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.compile.passes.fusion_rules import RELU_GRADIENTS
from runner.engine.compile.passes.matching import rewrite
from runner.engine.compile.passes.optimize import default_passes, optimize
from runner.engine.compile.passes.rewriting import Roots
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph import Graph, Node, Tensor, local_cluster, ops
from runner.engine.graph.verify import verify
from runner.engine.run.kernel_table import load_kernels
from runner.fields import labelled
from runner.kernels.elementwise import FUNCTIONS
from runner.models import VggA
from runner.optimizers import Adam, AdamW, HeavyBall, Momentum, Optimizer, Sgd
from runner.strategies import Single, SyncData, Workload
from runner.tasks.classification import classifier
from tests.engine.compile.passes.graph_text import (
    Array,
    Text,
    assert_outcome,
    assert_same_bits,
    assert_unchanged,
    assigned_values,
    counts,
    outcome,
    roots_of,
)
from tests.engine.compile.passes.training_graphs import NETWORKS, TrainingStep, training_step, update_step
from tests.engine.graph.random_graphs import Sample, training_samples
from tests.engine.running import Bench

PASSES = default_passes(load_kernels())
SAMPLES = st.sampled_from(["float64", "float32"]).flatmap(lambda dtype: training_samples(dtype=dtype))

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Sgd(weight_decay=1e-3),
    "momentum": Momentum(weight_decay=1e-3, bias_lr_factor=2.0),
    "heavy_ball": HeavyBall(weight_decay=1e-3),
    "adam": Adam(weight_decay=1e-3),
    "adamw": AdamW(weight_decay=1e-3),
    "clipped momentum": Momentum(weight_decay=1e-3, clip_norm=0.1),
    "clipped adam": Adam(clip_norm=0.1),
}


def optimized(step: TrainingStep) -> Graph:
    """Apply passes; check that each result is legal, that no value changes, and that a second run changes nothing."""
    graph, moved = optimize(step.graph, step.roots, PASSES, lambda name, result: verify(result))
    assert_unchanged(step.graph, graph, moved, step.fetches, step.feeds)
    again, nothing = optimize(graph, step.roots.after(moved), PASSES)
    assert (again.nodes, {t for t in nothing if t in step.roots.after(moved).fetches}) == (graph.nodes, set())
    return graph


@settings(max_examples=150)
@given(SAMPLES)
def test_each_pass_alone_and_all_together_change_no_bit(sample: Sample) -> None:
    roots = roots_of(sample.graph, sample.fetches)
    expected = outcome(sample.graph, sample.fetches, sample.feeds)
    for passes in (*((each,) for each in PASSES), PASSES):
        graph, moved = optimize(sample.graph, roots, passes, lambda name, result: verify(result))
        assert_outcome(graph, [moved.get(t, t) for t in sample.fetches], sample.feeds, expected)
        assert assigned_values(graph).keys() == assigned_values(sample.graph).keys()
        assert len(passes) > 1 or passes[0].run(graph, roots.after(moved))[0].nodes == graph.nodes


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", ["momentum", "clipped adam"])
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_passes_change_no_bit_of_a_training_step(network: str, optimizer: str, dtype: str) -> None:
    step = training_step(NETWORKS[network], OPTIMIZERS[optimizer], dtype)
    assert len(optimized(step)) < 0.6 * len(step.graph)


@pytest.mark.parametrize("strategy", [Single(), SyncData(workers=2)], ids=["single", "sync_data"])
def test_every_layer_of_lenet_is_one_node_forward_and_backward(strategy: Single | SyncData) -> None:
    graph = optimized(training_step(NETWORKS["lenet"], OPTIMIZERS["momentum"], strategy=strategy))
    per_worker = {op: count / strategy.workers for op, count in counts(graph).items()}
    expected = {
        "conv2d_fused": 2,
        "conv2d_weight_bias_gradient": 2,
        "conv2d_input_gradient": 1,
        "matmul_fused": 2,
        "matmul_bias_gradient": 2,
        "matmul": 2,
        "relu_gradient": 1,
    }
    assert {op: per_worker[op] for op in expected} == expected
    assert not per_worker.keys() & {"conv2d", "conv2d_weight_gradient", "relu", "batch_norm", "stop_gradient"}


def test_every_normalization_is_fused_with_its_relu() -> None:
    left = counts(optimized(training_step(NETWORKS["cifar_convnet"], OPTIMIZERS["clipped adam"])))
    assert left["batch_norm_relu"] == left["batch_norm_relu_gradient"] == 5
    assert not left.keys() & {"batch_norm", "batch_norm_gradient", "relu", "relu_gradient"}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_update_of_a_variable_and_its_slots_is_one_node(optimizer: Optimizer) -> None:
    graph = optimized(update_step(optimizer, [(4, 3), (3,), ()]))
    writers: dict[str, set[str]] = {}
    for assign in (node for node in graph if node.op == "assign"):
        weights = "/".join(assign.inputs[0].node.split("/")[:2])
        writers.setdefault(weights, set()).add(assign.inputs[1].node)
        assert graph.nodes[assign.inputs[1].node].op == "elementwise"
    assert {weights: len(nodes) for weights, nodes in writers.items()} == {f"fc{n}/weights": 1 for n in range(3)}
    updates = set().union(*writers.values())
    elsewhere = [node for node in graph if node.op in (*FUNCTIONS, "elementwise") and node.name not in updates]
    assert all(_is_shared(node) or node.op == "square" for node in elsewhere)


def _is_shared(node: Node) -> bool:
    """Return whether a node is a scalar that all variables share: a clipping factor or a bias correction of moments."""
    return node.outputs[0].shape == ()


PROGRAMS = {
    "sgd": "mul 0 #0.001; add 1 3; mul 4 2; sub 0 5",
    "momentum": "mul 0 #0.001; add 1 4; mul 2 #0.9; mul 5 3; sub 6 7; add 0 8",
    "heavy_ball": "mul 0 #0.9; mul 1 #0.001; add 2 5; add 4 6; mul 7 3; sub 1 8",
}


@pytest.mark.parametrize("optimizer", PROGRAMS)
def test_fused_update_computes_the_rule_of_the_optimizer(optimizer: str) -> None:
    graph = optimized(update_step(OPTIMIZERS[optimizer], [(4, 3)]))
    assert [node.attributes["program"] for node in graph if node.op == "elementwise"] == [PROGRAMS[optimizer]]


def test_tensor_that_two_passes_move_is_found() -> None:
    """``y`` duplicates the square ``first``, which joins a fused group; ``y`` and the group's result are fetched."""
    graph = Graph()
    x = ops.placeholder(graph, (3,), "float32", name="x")
    first = ops.square(graph, x)
    y = ops.square(graph, ops.identity(graph, x))
    last = ops.neg(graph, ops.add(graph, first, y), name="last")
    result, moved = optimize(graph, Roots.of([y, last]), PASSES)
    assert moved[y] == moved[first] == Tensor("last", 1)
    assert list(result.nodes) == ["x", "last"]


def test_passes_do_not_change_their_input() -> None:
    step = training_step(NETWORKS["lenet"], OPTIMIZERS["momentum"])
    before = dict(step.graph.nodes)
    optimize(step.graph, step.roots, PASSES)
    assert step.graph.nodes == before


HOIST = partial(rewrite, rules=RELU_GRADIENTS)


@st.composite
def poolings(draw: st.DrawFn) -> tuple[dict[str, tuple[int, ...]], Array, int]:
    """Draw the geometry of a pooling, images with few distinct values, and a seed for the gradient of the result."""
    window = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    strides = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    edges = [draw(st.integers(0, extent - 1)) for extent in (window[0], window[0], window[1], window[1])]
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 2)), *(draw(st.integers(e, e + 5)) for e in window))
    values = st.sampled_from([-np.inf, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, np.inf])
    size = int(np.prod(shape))
    z = np.array(draw(st.lists(values, min_size=size, max_size=size))).reshape(shape)
    return {"window": window, "strides": strides, "padding": tuple(edges)}, z, draw(st.integers(0, 99))


def pooled_gradient(shape: tuple[int, ...], geometry: Mapping[str, Any], dtype: str) -> Text:
    """Build the gradient of max_pool(relu(z)) with respect to z from dy, the gradient of the pooled result."""
    stated = ", ".join(f"{key}={value}" for key, value in geometry.items())
    graph = Graph()
    z = ops.placeholder(graph, shape, dtype)
    of_dy = graph.spec(ops.max_pool(graph, z, **geometry)[0]).shape
    return Text.parse(
        f"""z = input{shape}; dy = input{of_dy}; pooled, argmax = max_pool(z, {stated})
        d = max_pool_gradient(dy, argmax, {stated}, input_shape={shape}); gate = relu_gradient(d, z)""",
        dtype,
    )


@given(poolings())
def test_relu_gradients_of_pooled_tensors_are_equal_bit_for_bit(
    found: tuple[dict[str, tuple[int, ...]], Array, int],
) -> None:
    """dy has zeros of both signs and infinities; windows overlap, leave gaps, cross the edges and contain ties."""
    geometry, image, seed = found
    text = pooled_gradient(image.shape, geometry, "float64")
    z, dy, d, gate = text.names("z dy d gate")
    result, moved = HOIST(text.graph, Roots.of([gate]))
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(text.graph.spec(dy).shape)
    chance = rng.random(normal.shape)
    upstream = np.where(chance < 0.3, np.copysign(0.0, normal), np.where(chance > 0.9, np.inf, normal))
    assert moved == {gate: d}
    assert_unchanged(text.graph, result, moved, [gate], {z: image, dy: upstream})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "geometry",
    [
        {"window": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0)},
        {"window": (3, 3), "strides": (2, 2), "padding": (0, 1, 1, 0)},
    ],
)
def test_fast_kernels_give_equal_bits_for_relu_gradients_of_pooled_tensors(
    geometry: Mapping[str, tuple[int, ...]], dtype: str
) -> None:
    text = pooled_gradient((2, 16, 9, 10), geometry, dtype)
    z, dy, d, gate = text.names("z dy d gate")
    result, moved = HOIST(text.graph, Roots.of([gate]))
    rng = np.random.default_rng(0)
    feeds = {t: rng.standard_normal(text.graph.spec(t).shape).round(1).astype(dtype) for t in (z, dy)}
    before = Bench(text.graph, load_kernels(), [gate]).run(feeds)
    after = Bench(result, load_kernels(), [d]).run(feeds)
    assert_same_bits(before[gate], after[moved[gate]])


def test_last_relu_gradient_of_every_vgg_stage_has_the_pooled_size() -> None:
    network = classifier(VggA(widths=[2, 3, 2, 3, 4], units=5), 3)
    program = Single().build(Workload(network, Sgd(), labelled((2, 32, 32)), "float32", 0, 4, 4))
    plans = ProgramPlans(program, local_cluster(1), load_kernels()).plans(program.clients["train"].signature)
    (plan,) = plans.values()
    gates = [instruction for instruction in plan.instructions if instruction.op == "relu_gradient"]
    sizes = {gate.node: plan.slots[gate.outputs[0]].spec.shape[2:] for gate in gates}
    last = ["stage1_relu1", "stage2_relu1", "stage3_relu2", "stage4_relu2", "stage5_relu2"]
    found = [sizes[f"train/gradients/train/{name}/relu/relu_gradient"] for name in last]
    assert found == [(16, 16), (8, 8), (4, 4), (2, 2), (1, 1)]
