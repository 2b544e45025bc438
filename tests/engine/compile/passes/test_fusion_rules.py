"""The notation of rewrite rules, and the rules that fuse the nodes of a layer and of its gradients.

Each case is a graph before and after rewriting, or only one graph if rewriting does not change it.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from runner.engine.compile.passes.fusion_rules import (
    BIAS_AND_RELU,
    BIAS_GRADIENTS,
    NORMALIZATION_AND_RELU,
    RELU_GRADIENTS,
    SQUARES,
    UNROUNDED_SUMS,
)
from runner.engine.compile.passes.matching import Rule, rewrite
from runner.engine.compile.passes.rewriting import Roots
from tests.engine.compile.passes.graph_text import Case, Text, check, drawn
from tests.oracles import evaluate

MOVING = "x = input(3); d = exp(x); e = tanh(d)"
LATER = Rule("s = square(x); t = abs(s)", "t = sqrt(x)")
NOTATION = {
    "two statements never match one node": (
        [Rule("a = neg(x); b = neg(x)", "a = exp(x)")],
        Case("x = input(3); a = neg(x)"),
    ),
    "a rule that would change a shape is not applied": (
        [Rule("y = sub(a, b)", "y = neg(a)")],
        Case("a = input(3); b = input(2, 3); y = sub(a, b)"),
    ),
    "a moved tensor that is fetched is kept": (
        [Rule("d = exp(x); e = tanh(d)", "e = square(x, like=d, at=d)"), LATER],
        Case(
            "x = input(3); d = exp(x); e = tanh(d); t = abs(e)", "x = input(3); d = square(x); t = abs(d)", fetch="e t"
        ),
    ),
    "a moved tensor that is not fetched is removed": (
        [Rule("d = exp(x); e = tanh(d)", "e = square(x, like=d, at=d)"), LATER],
        Case(f"{MOVING}; t = abs(e)", "x = input(3); t = sqrt(x)"),
    ),
    "the first rule that matches is applied": (
        [Rule("y = neg(neg(x))", "y = exp(x)"), Rule("y = neg(x)", "y = tanh(x)")],
        Case("x = input(3); a = neg(x); y = neg(a)", "x = input(3); y = exp(x)"),
    ),
    "any number of inputs": (
        [Rule("y = add_n(*some, neg(x), *others)", "y = add_n(x, *others, *some)")],
        Case(
            "a = input(3); b = input(3); n = neg(b); y = add_n(a, n, b)",
            "a = input(3); b = input(3); y = add_n(b, b, a)",
        ),
    ),
}


@pytest.mark.parametrize("name", NOTATION)
def test_rule_is_applied_as_the_table_says(name: str) -> None:
    rules, case = NOTATION[name]
    check(case, partial(rewrite, rules=rules), same_bits=False)


def test_text_without_a_statement_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rule 'y \+ 1': expected OUTPUTS = OP\(INPUTS, ATTRIBUTE=VALUE\)"):
        _ = Rule("y + 1", "y = neg(x)").statements


LAYER = """
    x = input(2, 3, 4, 5); x2 = input(2, 3, 4, 5); w = input(3, 3, 3, 3)
    b = input(3); column = reshape(b, shape=(3, 1, 1))
    a = input(4, 3); m = input(3, 2); row = input(2)
"""
CONV, MATMUL = "c = conv2d(x, w, padding=(1, 1, 1, 1))", "c = matmul(a, m)"
FUSED = "padding=(1, 1, 1, 1)"
BIAS_AND_RELU_CASES = {
    "conv, bias": Case(f"{CONV}; y = add(c, column)", f"y = conv2d_fused(x, w, b, bias=True, {FUSED})"),
    "conv, residual": Case(f"{CONV}; y = add(c, x2)", f"y = conv2d_fused(x, w, x2, residual=True, {FUSED})"),
    "conv, relu": Case(f"{CONV}; y = relu(c)", f"y = conv2d_fused(x, w, relu=True, {FUSED})"),
    "conv, bias, residual": Case(
        f"{CONV}; d = add(c, column); y = add(d, x2)",
        f"y = conv2d_fused(x, w, b, x2, bias=True, residual=True, {FUSED})",
    ),
    **{
        f"conv, {part}, relu": Case(
            f"{CONV}; d = add(c, {added}); y = relu(d)",
            f"y = conv2d_fused(x, w, {read}, {part}=True, relu=True, {FUSED})",
        )
        for part, added, read in (("bias", "column", "b"), ("residual", "x2", "x2"))
    },
    "conv, bias, residual, relu, swapped": Case(
        f"{CONV}; d = add(column, c); e = add(x2, d); y = relu(e)",
        f"y = conv2d_fused(x, w, b, x2, bias=True, residual=True, relu=True, {FUSED})",
    ),
    "conv, bias of four dimensions": Case(
        f"{CONV}; four = reshape(b, shape=(1, 3, 1, 1)); y = add(c, four)",
        f"four = reshape(b, shape=(1, 3, 1, 1)); y = conv2d_fused(x, w, b, bias=True, {FUSED})",
    ),
    "conv, bias of each example": Case(
        f"own = input(2, 3); {CONV}; column2 = reshape(own, shape=(2, 3, 1, 1)); y = add(c, column2)",
    ),
    "matmul, bias": Case(f"{MATMUL}; y = add(c, row)", "y = matmul_fused(a, m, row, bias=True)"),
    "matmul, relu": Case(f"{MATMUL}; y = relu(c)", "y = matmul_fused(a, m, relu=True)"),
    "matmul, bias, relu, swapped": Case(
        f"{MATMUL}; d = add(row, c); y = relu(d)", "y = matmul_fused(a, m, row, bias=True, relu=True)"
    ),
    "matmul, transposed": Case(
        "t = input(2, 3); c = matmul(a, t, transpose_b=True); y = relu(c)",
        "t = input(2, 3); y = matmul_fused(a, t, transpose_b=True, relu=True)",
    ),
    "matmul, residual": Case("q = input(4, 4); c = matmul(q, q); y = add(c, q)"),
    "relu before bias": Case(
        f"{CONV}; d = relu(c); y = add(d, column)", f"d = conv2d_fused(x, w, relu=True, {FUSED}); y = add(d, column)"
    ),
    "residual before bias": Case(
        f"{CONV}; d = add(c, x2); y = add(d, column)",
        f"d = conv2d_fused(x, w, x2, residual=True, {FUSED}); y = add(d, column)",
    ),
    "the later of two summed convolutions is fused with the sum": Case(
        f"""short = conv2d(x, w, {FUSED}); biased = add(short, column)
        inner = conv2d(x, w, {FUSED}); outer = conv2d(inner, w, {FUSED}); sum = add(biased, outer); y = relu(sum)""",
        f"""biased = conv2d_fused(x, w, b, bias=True, {FUSED})
        inner = conv2d(x, w, {FUSED}); y = conv2d_fused(inner, w, biased, residual=True, relu=True, {FUSED})""",
    ),
    "the earlier of two summed convolutions has a late bias": Case(
        f"""short = conv2d(x, w, {FUSED}); long = conv2d(x2, w, {FUSED}); biased = add(short, column)
        y = add(biased, long)""",
        f"biased = conv2d_fused(x, w, b, bias=True, {FUSED}); y = conv2d_fused(x2, w, biased, residual=True, {FUSED})",
    ),
    "a convolution added to itself": Case(f"{CONV}; y = add(c, c)"),
    "a residual that is computed later": Case(
        f"{CONV}; late = exp(x2); y = add(c, late)",
        f"late = exp(x2); y = conv2d_fused(x, w, late, residual=True, {FUSED})",
    ),
    "another reader": Case(f"{CONV}; y = relu(c); z = exp(c)", fetch="y z"),
    "a fetch": Case(f"{CONV}; y = relu(c)", fetch="y c"),
    "a target": Case(f"{CONV}; y = relu(c)", targets="c"),
    "a node that waits": Case(f"{CONV}; y = relu(c); z = exp(x, after='c')", fetch="y z"),
    "a node colocated with the convolution": Case(f"{CONV}; y = relu(c); z = exp(x, beside='c')", fetch="y z"),
    "a convolution that reads a variable before its assign": Case(
        f"v = weights(3, 3, 3, 3); {CONV.replace('w', 'v')}; new = assign(v, w); y = relu(c, after='new')"
    ),
    "the last node is a target": Case(
        f"{CONV}; y = relu(c)", f"y = conv2d_fused(x, w, relu=True, {FUSED})", targets="y"
    ),
    "a ReLU on another device": Case(f"{CONV}; y = relu(c, on='there')"),
    "a bias on another device": Case(f"{CONV}; far = reshape(b, shape=(3, 1, 1), on='there'); y = add(c, far)"),
    "a bias that waits": Case(f"e = exp(x); {CONV}; late = reshape(b, shape=(3, 1, 1), after='e'); y = add(c, late)"),
    **{
        f"an operand of shape {shape}": Case(f"{CONV}; n = input{shape}; y = add(c, n)")
        for shape in ((3, 4, 1), (1, 4, 1), (5,), ())
    },
    "a bias along the width": Case(
        "i = input(2, 3, 4, 3); c = conv2d(i, w, padding=(1, 1, 1, 1)); r = reshape(b, shape=(1, 1, 3)); y = add(c, r)"
    ),
    "a sum that is larger than the product": Case(
        "p = input(1, 3); large = input(4, 2); c = matmul(p, m); y = add(c, large)"
    ),
    "names, layers, devices and control inputs": Case(
        """first = exp(a); second = exp(m); c = matmul(a, m, on='there', layer='fc', after='first')
        y = relu(c, on='there', layer='act', after='second first')""",
        """first = exp(a); second = exp(m)
        y = matmul_fused(a, m, relu=True, on='there', layer='fc', after='first second')""",
    ),
}

NORM = """
    x = input(4, 3, 2, 2); dz = input(4, 3, 2, 2); gamma = input(3); beta = input(3)
"""
BATCH_NORM, FUSED_NORM = (
    "n, mean, var = batch_norm(x, gamma, beta)",
    "z, mean, var, mask = batch_norm_relu(x, gamma, beta)",
)
GRADIENT = "dx, dgamma, dbeta = batch_norm_gradient(x, gamma, mean, var, gate)"
NORMALIZATION_CASES = {
    "forward": Case(f"{BATCH_NORM}; z = relu(n)", FUSED_NORM, fetch="z mean var"),
    "forward and backward": Case(
        f"{BATCH_NORM}; z = relu(n); gate = relu_gradient(dz, z); {GRADIENT}; early = exp(mean)",
        f"""{FUSED_NORM}; dx, dgamma, dbeta = batch_norm_relu_gradient(x, gamma, mean, var, mask, dz)
        early = exp(mean)""",
        fetch="z var dx dgamma dbeta early",
    ),
    "statistics are read before the ReLU": Case(
        f"{BATCH_NORM}; early = exp(mean); z = relu(n)", f"{FUSED_NORM}; early = exp(mean)", fetch="z early"
    ),
    "the gate has other readers": Case(
        f"{BATCH_NORM}; z = relu(n); gate = relu_gradient(dz, z); {GRADIENT}; other = exp(gate)",
        f"{FUSED_NORM}; gate = relu_gradient(dz, z); {GRADIENT}; other = exp(gate)",
        fetch="dx other",
    ),
    "the gate belongs to another ReLU": Case(
        f"{BATCH_NORM}; z = relu(n); o = relu(dz); gate = relu_gradient(dz, o); {GRADIENT}",
        f"{FUSED_NORM}; o = relu(dz); gate = relu_gradient(dz, o); {GRADIENT}",
        fetch="dx z",
    ),
    "the gate is also the input of the normalization": Case(
        f"{BATCH_NORM}; z = relu(n); gate = relu_gradient(dz, z)\n{GRADIENT.replace('(x', '(gate')}",
        f"{FUSED_NORM}; gate = relu_gradient(dz, z)\n{GRADIENT.replace('(x', '(gate')}",
    ),
    "a ReLU that waits for a later node": Case(f"{BATCH_NORM}; early = exp(mean); z = relu(n, after='early')"),
    "a ReLU that waits for an earlier node": Case(
        f"{BATCH_NORM}; z = relu(n, after='dz')", f"{FUSED_NORM[:-1]}, after='dz')"
    ),
}

GRADIENTS = """
    x = input(2, 2, 5, 4); dy = input(2, 3, 2, 4); rows = input(4, 3); drows = input(4, 2)
"""
GEOMETRY = "weight_shape=(3, 2, 3, 3), strides=(2, 1), padding=(1, 0, 1, 1)"
DW, DB = f"dw = conv2d_weight_gradient(dy, x, {GEOMETRY})", "db = reduce_sum(dy, axes=(0, 2, 3))"
BOTH = f"dw, db = conv2d_weight_bias_gradient(dy, x, {GEOMETRY})"
MATMUL_DW, MATMUL_DB = "dw = matmul(rows, drows, transpose_a=True)", "db = reduce_sum(drows, axes=(0,))"
BIAS_GRADIENT_CASES = {
    "convolution": Case(f"{DW}; {DB}; r = exp(db)", f"{BOTH}; r = exp(db)", fetch="dw db r"),
    "convolution, sum first": Case(f"{DB}; r = exp(db); {DW}", f"{BOTH}; r = exp(db)", fetch="dw db r"),
    "matmul": Case(f"{MATMUL_DW}; {MATMUL_DB}", "dw, db = matmul_bias_gradient(rows, drows)", fetch="dw db"),
    "matmul, sum first": Case(f"{MATMUL_DB}; {MATMUL_DW}", "dw, db = matmul_bias_gradient(rows, drows)", fetch="dw db"),
    "fewer axes": Case(f"db = reduce_sum(dy, axes=(0, 2)); {DW}", fetch="dw db"),
    "kept axes": Case(f"db = reduce_sum(dy, axes=(0, 2, 3), keepdims=True); {DW}", fetch="dw db"),
    "all axes": Case(f"db = reduce_sum(dy, axes=(0, 1, 2, 3)); {DW}", fetch="dw db"),
    **{
        f"matmul, {flags}": Case(
            f"q = input(2, 2); db = reduce_sum(q, axes=(0,)); dw = matmul(q, q{flags})", fetch="dw db"
        )
        for flags in ("", ", transpose_a=True, transpose_b=True", ", transpose_b=True")
    },
    "the sum of the other factor": Case(f"db = reduce_sum(rows, axes=(0,)); {MATMUL_DW}", fetch="dw db"),
    "a factor that is computed after the sum": Case(
        f"{DB}; late = tanh(x); dw = conv2d_weight_gradient(dy, late, {GEOMETRY})", fetch="dw db"
    ),
    "a gradient that waits for a node after the sum": Case(f"{DB}; t = tanh(x); {DW[:-1]}, after='t')", fetch="dw db"),
    "a sum joins one gradient": Case(
        f"n = neg(x); {DB}; {DW}; second = conv2d_weight_gradient(dy, n, {GEOMETRY})",
        f"n = neg(x); {BOTH}; second = conv2d_weight_gradient(dy, n, {GEOMETRY})",
        fetch="dw db second",
    ),
}

SUMS = """
    x = input(4, 3); dy = input(4, 2); b = input(2); dz = input(2, 3, 4, 4); z = input(2, 2, 4, 4)
"""
WIDE, FILTERS = "dtype='float32'", "weight_shape=(3, 2, 3, 3), padding=(1, 1, 1, 1)"
PAIR = "dw, db = matmul_bias_gradient(x, dy)"
UNROUNDED_CASES = {
    "matmul": Case(
        f"p = matmul(x, dy, transpose_a=True); c = cast(p, {WIDE})",
        f"p = matmul_fused(x, dy, transpose_a=True, {WIDE})",
    ),
    "matmul_fused": Case(
        f"p = matmul_fused(x, dy, b, transpose_a=True, bias=True); c = cast(p, {WIDE})",
        f"p = matmul_fused(x, dy, b, transpose_a=True, bias=True, {WIDE})",
    ),
    "conv2d_weight_gradient": Case(
        f"p = conv2d_weight_gradient(dz, z, {FILTERS}); c = cast(p, {WIDE})",
        f"p = conv2d_weight_gradient(dz, z, {FILTERS}, {WIDE})",
    ),
    "matmul_bias_gradient": Case(
        f"{PAIR}; c = cast(dw, {WIDE}); d = cast(db, {WIDE})", f"{PAIR[:-1]}, {WIDE})", fetch="c d"
    ),
    "conv2d_weight_bias_gradient": Case(
        f"""dw, db = conv2d_weight_bias_gradient(dz, z, {FILTERS}); n = neg(x)
        c = cast(dw, {WIDE}); d = cast(db, {WIDE})""",
        f"dw, db = conv2d_weight_bias_gradient(dz, z, {FILTERS}, {WIDE}); n = neg(x)",
        fetch="c d",
    ),
    "the other output is not read": Case(f"{PAIR}; c = cast(dw, {WIDE})", f"{PAIR[:-1]}, {WIDE})"),
    "the other output is read": Case(f"{PAIR}; c = cast(dw, {WIDE}); n = neg(db)", fetch="c n"),
    "another dtype": Case(f"{PAIR}; c = cast(dw, dtype='float64')"),
    "a cast that waits": Case(f"{PAIR}; f = exp(x); c = cast(dw, {WIDE}, after='f')"),
    "a sum of float64": Case(
        f"u = input(4, 3, dtype='float64'); p = matmul(u, u, transpose_a=True); c = cast(p, {WIDE})"
    ),
}

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
    "a pooling of a ReLU": Case(f"{POOL_OF_RELU}; {D}; gate = relu_gradient(d, r)", f"{POOL_OF_RELU}; {HOISTED}"),
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
    "a gate by a tensor that is not pooled": Case(f"{POOL}; o = input(2, 3, 6, 6); {D}; gate = relu_gradient(d, o)"),
    "positions that no pooling computed": Case(
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

SQUARE_CASES = {
    "all axes": Case("s = square(x); y = reduce_sum(s, axes=(0, 1))", "y = sum_of_squares(x, axes=(0, 1))"),
    "the squares have another reader": Case("s = square(x); y = reduce_sum(s, axes=(0, 1)); e = exp(s)", fetch="y e"),
    "one axis": Case("s = square(x); y = reduce_sum(s, axes=(0,))"),
    "all axes are kept": Case("s = square(x); y = reduce_sum(s, axes=(0, 1), keepdims=True)"),
}

TABLE = {
    "bias and relu": (BIAS_AND_RELU, LAYER, "float32", BIAS_AND_RELU_CASES),
    "normalization": (NORMALIZATION_AND_RELU, NORM, "float64", NORMALIZATION_CASES),
    "bias gradients": (BIAS_GRADIENTS, GRADIENTS, "float32", BIAS_GRADIENT_CASES),
    "unrounded sums": (UNROUNDED_SUMS, SUMS, "bfloat16", UNROUNDED_CASES),
    "relu gradients": (RELU_GRADIENTS, "", "float64", RELU_GRADIENT_CASES),
    "sums of squares": (SQUARES, "x = input(3, 4);", "float32", SQUARE_CASES),
}


@pytest.mark.parametrize(("table", "name"), [(table, name) for table, (*_, cases) in TABLE.items() for name in cases])
def test_layer_is_rewritten_as_the_table_says(table: str, name: str) -> None:
    rules, inputs, dtype, cases = TABLE[table]
    run = partial(rewrite, rules=rules, from_end=rules is BIAS_AND_RELU)
    check(replace(cases[name], dtype=dtype), run, inputs, same_bits=rules is not UNROUNDED_SUMS)


@pytest.mark.parametrize("name", [name for name, case in UNROUNDED_CASES.items() if case.after])
def test_unrounded_sum_rounds_to_the_value_before_the_rewrite(name: str) -> None:
    before = Text.parse(SUMS + UNROUNDED_CASES[name].before, "bfloat16")
    casts = [node[0] for node in before.graph if node.op == "cast"]
    result, moved = rewrite(before.graph, Roots.of(casts), UNROUNDED_SUMS)
    feeds = drawn(before.graph)
    unrounded = evaluate(result, [moved[cast] for cast in casts], feeds)
    for value, rounded in zip(unrounded, evaluate(before.graph, casts, feeds), strict=True):
        np.testing.assert_array_equal(value.astype("bfloat16").astype("float32"), rounded)
        assert (value != rounded).any()
