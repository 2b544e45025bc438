"""Constants are computed before the first step, and never grow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from runner.engine.compile.passes.constant_folding import MAX_BYTES, REARRANGING, UNIFORM, fold_constants
from runner.engine.compile.passes.rewriting import Roots
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import OPS
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.verify import verify
from runner.kernels.registry import Registry
from tests.engine.compile.passes.exactness import assert_unchanged
from tests.op_cases import CASES

LARGE = (64, 64)


def folded(graph: Graph, registry: Registry, fetch: Tensor) -> tuple[str, object]:
    """Op and value of what a fetched node becomes, after a check that no bit changes."""
    result, moved = fold_constants(graph, Roots.of([fetch]), registry)
    assert moved == {}
    assert_unchanged(graph, result, moved, [fetch], {})
    assert fold_constants(result, Roots(), registry)[0].nodes == result.nodes
    node = result.nodes[fetch.node]
    return node.op, node.attributes.get("value")


def test_arithmetic_on_fills_is_a_fill_however_large(registry: Registry) -> None:
    graph = Graph()
    large = ops.fill(graph, 0.1, LARGE, "float32")
    total = ops.add(
        graph, ops.scale(graph, large, 3.0), ops.broadcast_to(graph, ops.fill(graph, 1.0, (), "float32"), LARGE)
    )
    op, value = folded(graph, registry, total)
    assert op == "fill"
    assert value == float(np.float32(0.1) * np.float32(3.0) + np.float32(1.0))


@pytest.mark.parametrize(("number", "dtype"), [(-0.0, "float64"), (math.inf, "float32"), (3.0, "int64"), (1.0, "bool")])
def test_a_fill_that_is_rearranged_stays_a_fill_of_the_same_bits(number: float, dtype: str, registry: Registry) -> None:
    graph = Graph()
    x = ops.fill(graph, number, (2, 64, 64), dtype)
    y = ops.transpose(graph, ops.reshape(graph, x, (-1, 128)), (1, 0))
    op, value = folded(graph, registry, y)
    assert (op, value) == ("fill", number)
    assert math.copysign(1.0, float(str(value))) == math.copysign(1.0, number)


def test_a_small_result_becomes_a_table(registry: Registry) -> None:
    graph = Graph()
    table = ops.constant(graph, np.arange(6.0).reshape(2, 3))
    y = ops.exp(graph, ops.scale(graph, table, 0.5))
    op, value = folded(graph, registry, y)
    assert (op, value) == ("constant", np.exp(np.arange(6.0) * 0.5).tobytes())


def test_bfloat16_is_rounded_as_it_would_be_in_a_step(registry: Registry) -> None:
    graph = Graph()
    third, zero = ops.fill(graph, 1 / 3, LARGE, "bfloat16"), ops.fill(graph, 0.0, (), "bfloat16")
    assert folded(graph, registry, ops.scale(graph, third, 3.0)) == ("fill", 1.0)
    assert folded(graph, registry, ops.div(graph, third, zero)) == ("fill", math.inf)
    table = ops.constant(graph, np.arange(6.0).astype("bfloat16"))
    expected = np.exp(np.arange(6.0, dtype=np.float32)).astype("bfloat16").tobytes()
    assert folded(graph, registry, ops.exp(graph, table)) == ("constant", expected)


def test_a_table_of_one_number_becomes_a_fill(registry: Registry) -> None:
    graph = Graph()
    total = ops.reduce_sum(graph, ops.constant(graph, np.ones((3, 2), np.float32)), (0,))
    assert folded(graph, registry, total) == ("fill", 3.0)


def test_zeros_of_both_signs_are_not_one_number(registry: Registry) -> None:
    graph = Graph()
    negated = ops.neg(graph, ops.constant(graph, np.array([0.0, -0.0])))
    assert folded(graph, registry, negated)[0] == "constant"


def test_a_large_table_is_not_made(registry: Registry) -> None:
    graph = Graph()
    count = MAX_BYTES // 8
    fitting = ops.tanh(graph, ops.constant(graph, np.linspace(0, 1, count)))
    beyond = ops.tanh(graph, ops.constant(graph, np.linspace(0, 1, count + 1)))
    spread = ops.broadcast_to(graph, ops.constant(graph, np.array([0.0, 1.0])), (count, 2))
    assert folded(graph, registry, fitting)[0] == "constant"
    assert folded(graph, registry, beyond)[0] == "tanh"
    assert folded(graph, registry, spread)[0] == "broadcast_to"


def test_a_large_input_is_not_looked_at(registry: Registry) -> None:
    graph = Graph()
    total = ops.reduce_sum(graph, ops.fill(graph, 1.0, LARGE, "float64"))
    assert folded(graph, registry, total)[0] == "reduce_sum"


def test_whole_numbers_that_a_fill_cannot_hold_become_a_table(registry: Registry) -> None:
    graph = Graph()
    large = ops.fill(graph, 2.0**52, (3,), "int64")
    doubled = ops.add(graph, large, large)
    assert folded(graph, registry, doubled) == ("fill", 2.0**53)
    odd = ops.add(graph, doubled, ops.fill(graph, 1.0, (), "int64"))
    assert folded(graph, registry, odd) == ("constant", np.full(3, 2**53 + 1).tobytes())


def test_what_reads_nothing_is_no_constant(registry: Registry) -> None:
    graph = Graph()
    assert folded(graph, registry, ops.random_normal(graph, (2,), "float32", seed=0, key="w"))[0] == "random_normal"


def test_what_reads_a_variable_or_copies_is_left_alone(registry: Registry) -> None:
    graph = Graph()
    zero = ops.fill(graph, 0.0, (2,), "float32")
    kept = [ops.assign(graph, ops.variable(graph, (2,), "float32"), zero), ops.convert(graph, zero)]
    result, _ = fold_constants(graph, Roots.of(kept), registry)
    assert result.nodes == graph.nodes


def test_a_constant_waits_for_what_the_node_waited_for(registry: Registry) -> None:
    graph = Graph()
    one = ops.fill(graph, 1.0, (), "float32", name="one")
    with graph.control_dependencies(["one"]):
        ops.neg(graph, one, name="negated")
    result, _ = fold_constants(graph, Roots.of([Tensor("negated")]), registry)
    verify(result)
    assert result.nodes["negated"].control_inputs == ("one",)
    assert (result.nodes["negated"].op, result.nodes["negated"].inputs) == ("fill", ())


@pytest.mark.parametrize("op", sorted(UNIFORM | REARRANGING))
def test_equal_elements_give_equal_elements(op: str, registry: Registry) -> None:
    """Each op of the two tables on fills like the samples of the op, against its kernel on whole tensors."""
    for case in CASES[op]:
        graph, _, node = case.build(op)
        fills = [
            ops.fill(graph, float(np.asarray(array).flat[0]), array.shape, array.dtype.name)
            for array in case.draw(seed=1)
        ]
        y = graph.add(op, fills, node.attributes)[0]
        assert folded(graph, registry, y)[0] == "fill"


def test_parts_of_equal_elements_are_joined_and_cut_without_a_kernel(registry: Registry) -> None:
    graph = Graph()
    whole = ops.fill(graph, 0.5, (5, 1), "float32")
    parts = ops.split(graph, whole, 0, (2, 3), name="parts")
    joined = ops.concat(graph, [*parts, ops.fill(graph, 0.5, (1, 1), "float32")], 0, name="joined")
    result, moved = fold_constants(graph, Roots.of([*parts, joined]), registry)
    verify(result)
    assert [(moved[part].node, result.spec(moved[part]).shape) for part in parts] == [
        ("parts/0", (2, 1)),
        ("parts/1", (3, 1)),
    ]
    assert {node.op for node in result} == {"fill"}
    assert result.nodes["joined"].attributes == {"value": 0.5, "shape": (6, 1), "dtype": "float32"}


def test_a_split_that_others_wait_for_stays(registry: Registry) -> None:
    graph = Graph()
    ops.split(graph, ops.fill(graph, 0.5, (2,), "float32"), 0, (1, 1), name="parts")
    with graph.control_dependencies(["parts"]):
        late = ops.fill(graph, 1.0, (), "float32", name="late")
    result, moved = fold_constants(graph, Roots.of([late]), registry)
    assert (result.nodes["parts"].op, moved) == ("split", {})


def test_unequal_constants_are_joined_as_they_are(registry: Registry) -> None:
    graph = Graph()
    halves = [ops.fill(graph, value, (600,), "float64") for value in (0.5, 1.5)]
    assert folded(graph, registry, ops.concat(graph, halves, 0))[0] == "concat"


def test_the_tables_name_ops() -> None:
    assert OPS.keys() >= UNIFORM | REARRANGING
