"""Constant folding: the nodes that become constants, and the limit on the size of stored tables."""

import math
from functools import partial

import numpy as np
import pytest

from runner.engine.compile.passes.constant_folding import MAX_BYTES, REARRANGING, UNIFORM, fold_constants
from runner.engine.compile.passes.rewriting import Roots
from runner.engine.graph import ops
from runner.engine.graph.verify import verify
from runner.kernels.contract import FLOATS, Kernel
from runner.kernels.functions import arrange_plain, function_kernel
from runner.kernels.registry import Registry
from tests.engine.compile.passes.graph_text import Array, Case, Text, assert_unchanged, check
from tests.op_cases import CASES

COUNT = MAX_BYTES // 8
"""The number of float64 elements in the largest constant that folding creates."""


def fill(value: float, *shape: int, dtype: str = "float32") -> str:
    return f"fill(value={str(value).replace('inf', '1e999')}, shape={shape}, dtype='{dtype}')"


def table(array: Array, dtype: str) -> str:
    return f"constant(value={array.astype(dtype).tobytes()!r}, shape={array.shape}, dtype='{dtype}')"


SIX, LINE = np.arange(6.0), np.linspace(0, 1, COUNT + 1)
SCALED = float(np.float32(0.1) * np.float32(3.0))

FOLDED = {
    "arithmetic on tensors of any size": (
        f"a = {fill(0.1, 64, 64)}; b = {fill(3.0)}; c = mul(a, b); d = {fill(1.0)}"
        "; e = broadcast_to(d, shape=(64, 64)); y = add(c, e)",
        fill(float(np.float32(SCALED) + np.float32(1.0)), 64, 64),
    ),
    **{
        f"{number} of {dtype}, rearranged": (
            f"a = {fill(number, 2, 8, 8, dtype=dtype)}; b = reshape(a, shape=(8, 16)); y = transpose(b, perm=(1, 0))",
            fill(number, 16, 8, dtype=dtype),
        )
        for number, dtype in ((-0.0, "float64"), (math.inf, "float32"), (3.0, "int64"), (1.0, "bool"))
    },
    "a small result": (
        f"a = {table(SIX.reshape(2, 3), 'float64')}; h = {fill(0.5, dtype='float64')}; b = mul(a, h); y = exp(b)",
        table(np.exp(SIX * 0.5).reshape(2, 3), "float64"),
    ),
    "rounding to bfloat16": (
        f"a = {fill(1 / 3, 64, 64, dtype='bfloat16')}; b = {fill(3.0, dtype='bfloat16')}; y = mul(a, b)",
        fill(1.0, 64, 64, dtype="bfloat16"),
    ),
    "division by zero in bfloat16": (
        f"a = {fill(1 / 3, 64, 64, dtype='bfloat16')}; b = {fill(0.0, dtype='bfloat16')}; y = div(a, b)",
        fill(math.inf, 64, 64, dtype="bfloat16"),
    ),
    "a table of bfloat16": (
        f"a = {table(SIX, 'bfloat16')}; y = exp(a)",
        table(np.exp(SIX.astype("float32")), "bfloat16"),
    ),
    "a table of one number": (f"a = {table(np.ones((3, 2)), 'float32')}; y = reduce_sum(a, axes=(0,))", fill(3.0, 2)),
    "zeros of both signs": (
        f"a = {table(np.array([0.0, -0.0]), 'float64')}; y = neg(a)",
        table(np.array([-0.0, 0.0]), "float64"),
    ),
    "a table that just fits": (f"a = {table(LINE[:-1], 'float64')}; y = tanh(a)", table(np.tanh(LINE[:-1]), "float64")),
    "integers that a fill can hold": (
        f"a = {fill(2.0**52, 3, dtype='int64')}; y = add(a, a)",
        fill(2.0**53, 3, dtype="int64"),
    ),
    "integers that a fill cannot hold": (
        f"a = {fill(2.0**53, 3, dtype='int64')}; b = {fill(1.0, dtype='int64')}; y = add(a, b)",
        table(np.full(3, 2**53 + 1), "int64"),
    ),
    "control inputs": (f"x = input(); a = {fill(1.0)}; y = neg(a, after='x')", fill(-1.0)[:-1] + ", after='x')"),
    "concat of equal parts": (f"a = {fill(0.5, 600)}; b = {fill(0.5, 700)}; y = concat(a, b, axis=0)", fill(0.5, 1300)),
    "concat of one part": (f"a = {fill(0.5, 600)}; y = concat(a, axis=0)", fill(0.5, 600)),
}
KEPT = {
    "a table beyond the limit": f"a = {table(LINE, 'float64')}; y = tanh(a)",
    "a result beyond the limit": (
        f"a = {table(np.array([0.0, 1.0]), 'float64')}; y = broadcast_to(a, shape=({COUNT}, 2))"
    ),
    "a large input": f"a = {fill(0.1, 64, 64)}; y = reduce_sum(a, axes=(0, 1))",
    "a node without inputs": "y = random_normal(shape=(2,), dtype='float32', seed=0, key='w', mean=0.0, stddev=1.0)",
    "a variable": f"v = weights(2); a = {fill(0.0, 2)}; y = assign(v, a)",
    "a copy": f"a = {fill(0.0, 2)}; y = convert(a)",
    "a constant that waits": f"x = input(); a = {fill(1.0)[:-1]}, after='x'); y = neg(a)",
    "a split that another node waits for": (
        f"a = {fill(0.5, 2)}; p, q = split(a, axis=0, sizes=(1, 1)); y = {fill(1.0)[:-1]}, after='p')"
    ),
    "concat of zeros of both signs": f"a = {fill(0.0, 600)}; b = {fill(-0.0, 600)}; y = concat(a, b, axis=0)",
    "concat of unequal parts": (
        f"a = {fill(0.5, 600, dtype='float64')}; b = {fill(1.5, 600, dtype='float64')}; y = concat(a, b, axis=0)"
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_result_of_constants_is_a_constant(name: str, registry: Registry) -> None:
    text, constant = FOLDED[name]
    before = Text.parse(text)
    result, moved = fold_constants(before.graph, Roots.of(before.names("y")), registry)
    assert moved == {}
    verify(result)
    # The representation of a node distinguishes 0.0 from -0.0.
    assert repr(result.nodes["y"]) == repr(Text.parse(f"x = input(); y = {constant}").last)
    feeds = {node[0]: np.zeros((), np.float32) for node in result if node.op == "placeholder"}
    assert_unchanged(before.graph, result, moved, before.names("y"), feeds)
    assert fold_constants(result, Roots(), registry)[0].nodes == result.nodes


@pytest.mark.parametrize("name", KEPT)
def test_node_that_cannot_be_folded_is_kept(name: str, registry: Registry) -> None:
    check(Case(KEPT[name]), partial(fold_constants, registry=registry))


@pytest.mark.parametrize("op", sorted(UNIFORM | REARRANGING))
def test_op_on_inputs_of_equal_elements_gives_equal_elements(op: str, registry: Registry) -> None:
    """Fold each op on fills that have the shapes of its sample inputs, and compare the result with the unfolded op."""
    for case in CASES[op]:
        graph, _, node = case.build(op)
        fills = [
            ops.fill(graph, float(np.asarray(array).flat[0]), array.shape, array.dtype.name)
            for array in case.draw(seed=1)
        ]
        y = graph.add(op, fills, node.attributes)[0]
        result, moved = fold_constants(graph, Roots.of([y]), registry)
        assert_unchanged(graph, result, moved, [y], {})
        assert result.nodes[y.node].op == "fill"


def test_fills_are_concatenated_and_split_without_a_kernel(registry: Registry) -> None:
    whole = f"a = {fill(0.5, 5, 1)}; c = {fill(0.5, 1, 1)}"
    case = Case(
        f"{whole}; p, q = split(a, axis=0, sizes=(2, 3)); y = concat(p, q, c, axis=0); p__0 = neg(y)",
        f"{whole}; p__0_1 = {fill(0.5, 2, 1)}; p__1 = {fill(0.5, 3, 1)}"
        f"; y = {fill(0.5, 6, 1)}; p__0 = {fill(-0.5, 6, 1)}",
        fetch="p q y",
    )
    check(case, partial(fold_constants, registry=registry))


def test_node_with_an_index_out_of_range_is_kept(registry: Registry) -> None:
    case = Case(f"a = {table(SIX, 'float32')}; i = {fill(6.0, 1, dtype='int64')}; y = gather(a, i)")
    check(case, partial(fold_constants, registry=registry), same_bits=False)


def refuse(x: Array) -> Array:
    raise ValueError("the step reports this error with the name of the node")


@pytest.mark.parametrize(
    "kernel",
    [
        Kernel("exp", "cpu", "other", 0, FLOATS, arrange_plain, lambda *_: pytest.fail("no reference kernel")),
        function_kernel("exp", refuse),
        function_kernel("exp", lambda x: x.astype(np.float64)),
    ],
    ids=["of another library", "that fails", "of a wrong dtype"],
)
def test_op_with_only_this_kernel_is_kept(kernel: Kernel) -> None:
    registry = Registry()
    registry.add(kernel)
    check(Case(f"a = {table(SIX, 'float32')}; y = exp(a)"), partial(fold_constants, registry=registry))
