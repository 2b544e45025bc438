"""The gradient of a ReLU before a max pooling is computed from the pooled tensor; no bit changes."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.compile.passes.fusion_rules import RELU_GRADIENTS
from runner.engine.compile.passes.matching import rewrite
from runner.engine.compile.passes.rewriting import Roots
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster
from runner.engine.graph.graph import Graph
from runner.engine.run.kernel_table import load_kernels
from runner.models.vgg_a import VggA
from runner.optimizers.sgd import Sgd
from runner.strategies.base import Task
from runner.strategies.single import Single
from tests.engine.compile.passes.exactness import Array, assert_same_bits, assert_unchanged
from tests.engine.compile.passes.graph_text import Case, Text, check
from tests.engine.running import Bench

HALVES = "window=(2, 2), strides=(2, 2)"
OVERLAPPING = "window=(3, 3), strides=(2, 2), padding=(0, 1, 1, 0)"
BACK = "input_shape=(2, 3, 6, 6)"
POOL = f"z = input(2, 3, 6, 6); dy = input(2, 3, 3, 3); pooled, argmax = max_pool(z, {HALVES})"
POOL_OF_RELU = POOL.replace("pooled", "r = relu(z); pooled").replace("max_pool(z", "max_pool(r")
D, GATE = f"d = max_pool_gradient(dy, argmax, {HALVES}, {BACK})", "gate = relu_gradient(d, z)"
HOISTED = f"gate = relu_gradient(dy, pooled); d = max_pool_gradient(gate, argmax, {HALVES}, {BACK})"
RELU_GRADIENT_CASES = {
    "a pooling": Case(f"{POOL}; {D}; e = exp(z); {GATE}; r = exp(gate)", f"{POOL}; {HOISTED}; e = exp(z); r = exp(d)"),
    "overlapping windows": Case(
        *(text.replace(HALVES, OVERLAPPING) for text in (f"{POOL}; {D}; {GATE}", f"{POOL}; {HOISTED}"))
    ),
    "the ReLU is known": Case(f"{POOL_OF_RELU}; {D}; gate = relu_gradient(d, r)", f"{POOL_OF_RELU}; {HOISTED}"),
    "two poolings": Case(
        f"""{POOL}; top = input(2, 3, 2, 2); twice, second = max_pool(pooled, window=(2, 2))
        p = max_pool_gradient(top, second, window=(2, 2), input_shape=(2, 3, 3, 3)); {D.replace("dy", "p")}; {GATE}""",
        f"""{POOL}; top = input(2, 3, 2, 2); twice, second = max_pool(pooled, window=(2, 2))
        gate = relu_gradient(top, twice); p = max_pool_gradient(gate, second, window=(2, 2), input_shape=(2, 3, 3, 3))
        {D.replace("dy", "p")}""",
    ),
    "two layers of ReLU and pooling": Case(
        f"""{POOL}; again = relu(pooled); top = input(2, 3, 2, 2); twice, second = max_pool(again, window=(2, 2))
        p = max_pool_gradient(top, second, window=(2, 2), input_shape=(2, 3, 3, 3)); q = relu_gradient(p, again)
        {D.replace("dy", "q")}; {GATE}""",
        f"""{POOL}; again = relu(pooled); top = input(2, 3, 2, 2); twice, second = max_pool(again, window=(2, 2))
        q = relu_gradient(top, twice); p = max_pool_gradient(q, second, window=(2, 2), input_shape=(2, 3, 3, 3))
        gate = relu_gradient(p, pooled); d = max_pool_gradient(gate, argmax, {HALVES}, {BACK})""",
    ),
    "layers": Case(
        f"{POOL}; {D[:-1]}, layer='pool'); {GATE[:-1]}, layer='relu')",
        f"{POOL}; {HOISTED[:-1]}, layer='pool')".replace("pooled);", "pooled, layer='relu');"),
    ),
    "another reader": Case(f"{POOL}; {D}; {GATE}; r = exp(d)", fetch="gate r"),
    "a fetch": Case(f"{POOL}; {D}; {GATE}", fetch="gate d"),
    "a target": Case(f"{POOL}; {D}; {GATE}", targets="d"),
    "a node waits for the pooling gradient": Case(f"{POOL}; {D}; {GATE}; e = exp(z, after='d')", fetch="gate e"),
    "another device": Case(f"{POOL}; {D}; {GATE[:-1]}, on='there')"),
    "a pooling on another device": Case(f"{POOL[:-1]}, on='there'); {D}; {GATE}"),
    "the ReLU gradient is a target": Case(f"{POOL}; {D}; {GATE}", targets="gate"),
    "a node waits for the ReLU gradient": Case(f"{POOL}; {D}; {GATE}; e = exp(z, after='gate')", fetch="gate e"),
    "the ReLU gradient waits": Case(f"{POOL}; e = exp(z); {D}; {GATE[:-1]}, after='e')"),
    "another tensor than the pooled one": Case(f"{POOL}; o = input(2, 3, 6, 6); {D}; gate = relu_gradient(d, o)"),
    "positions of no pooling": Case(
        f"""z = input(2, 3, 6, 6); argmax = cast(z, dtype='int32')
        d = max_pool_gradient(z, argmax, window=(1, 1), {BACK}); gate = relu_gradient(d, z)"""
    ),
    **{
        f"other windows, {other}": Case(
            f"""z = input(2, 3, 6, 6); dy = input(2, 3, 3, 2)
            pooled, argmax = max_pool(z, window=(2, 2), strides=(2, 3))
            d = max_pool_gradient(dy, argmax, {other}, {BACK}); gate = relu_gradient(d, z)"""
        )
        for other in (
            "window=(1, 2), strides=(2, 3)",
            "window=(2, 2), strides=(2, 4)",
            "window=(2, 2), strides=(2, 3), padding=(1, 0, 0, 0)",
        )
    },
}

HOIST = partial(rewrite, rules=RELU_GRADIENTS)


@pytest.mark.parametrize("name", RELU_GRADIENT_CASES)
def test_relu_gradients_are_moved_before_poolings_as_the_table_says(name: str) -> None:
    check(replace(RELU_GRADIENT_CASES[name], dtype="float64"), HOIST)


@st.composite
def poolings(draw: st.DrawFn) -> tuple[dict[str, tuple[int, ...]], Array, int]:
    """A geometry, images of a few values with many ties, and a seed for dy."""
    window = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    strides = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    edges = [draw(st.integers(0, extent - 1)) for extent in (window[0], window[0], window[1], window[1])]
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 2)), *(draw(st.integers(e, e + 5)) for e in window))
    values = st.sampled_from([-np.inf, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, np.inf])
    size = int(np.prod(shape))
    z = np.array(draw(st.lists(values, min_size=size, max_size=size))).reshape(shape)
    return {"window": window, "strides": strides, "padding": tuple(edges)}, z, draw(st.integers(0, 99))


def pooled_gradient(shape: tuple[int, ...], geometry: Mapping[str, Any], dtype: str) -> Text:
    """The gradient gate of ReLU and pooling for z and dy."""
    stated = ", ".join(f"{key}={value}" for key, value in geometry.items())
    graph = Graph()
    z = ops.placeholder(graph, shape, dtype)
    of_dy = graph.spec(ops.max_pool(graph, z, **geometry)[0]).shape
    return Text.parse(
        f"""z = input{shape}; dy = input{of_dy}; pooled, argmax = max_pool(z, {stated})
        d = max_pool_gradient(dy, argmax, {stated}, input_shape={shape}); {GATE}""",
        dtype,
    )


@given(poolings())
def test_relu_gradients_of_pooled_tensors_are_equal_bit_for_bit(
    found: tuple[dict[str, tuple[int, ...]], Array, int],
) -> None:
    """dy has zeros of both signs and infinities; windows overlap, leave gaps, cross edges and contain ties."""
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


def test_every_stage_of_vgg_ends_in_a_relu_gradient_of_the_pooled_tensor() -> None:
    network = VggA(widths=[2, 3, 2, 3, 4], units=5).network(3)
    program = Single().build(Task(network, Sgd(), (2, 32, 32), "float32", 0, 4, 4))
    plans = ProgramPlans(program, local_cluster(1), load_kernels()).plans(program.clients["train"].signature)
    (plan,) = plans.values()
    gates = [instruction for instruction in plan.instructions if instruction.op == "relu_gradient"]
    sizes = {gate.node: plan.slots[gate.outputs[0]].spec.shape[2:] for gate in gates}
    last = ["stage1_relu1", "stage2_relu1", "stage3_relu2", "stage4_relu2", "stage5_relu2"]
    found = [sizes[f"train/gradients/train/{name}/relu/relu_gradient"] for name in last]
    assert found == [(16, 16), (8, 8), (4, 4), (2, 2), (1, 1)]
