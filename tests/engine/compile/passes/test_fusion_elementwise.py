"""Groups of element-wise nodes: as large as possible, in one piece, and with every value that is needed."""

import pytest

from runner.engine.compile.passes.fusion_elementwise import MAX_STEPS, fuse_elementwise
from runner.kernels.elementwise import FUNCTIONS
from tests.engine.compile.passes.graph_text import Case, check

INPUTS = "a = input(2, 3); b = input(2, 3); c = input(2, 3); rate = input()"


def node(name: str, inputs: str, program: str, *outputs: int, more: str = "") -> str:
    return f"{name} = elementwise({inputs}, program='{program}', outputs={outputs}{more})"


CASES = {
    "a chain has the name of its last node": Case(
        "m = mul(b, rate); y = sub(a, m)", node("y", "b, rate, a", "mul 0 1; sub 2 3", 4)
    ),
    **{
        f"the function {function}": Case(
            f"p = abs(a); y = {function}({'p, b' if arity == 2 else 'p'})",
            node("y", "a, b", f"abs 0; {function} 2 1", 3) if arity == 2 else node("y", "a", f"abs 0; {function} 1", 2),
        )
        for function, (arity, _) in FUNCTIONS.items()
    },
    "a sum of many, from left to right": Case(
        "t = add_n(a, b, a, c); y = square(t)", node("y", "a, b, c", "add 0 1; add 3 0; add 4 2; square 5", 6)
    ),
    "fills of any shape are literals": Case(
        """h = fill(value=0.1, shape=(), dtype='float32'); x = mul(a, h)
        z = fill(value=-0.0, shape=(3,), dtype='float32'); u = add(z, x)
        i = fill(value=-1e999, shape=(2, 3), dtype='float32'); y = maximum(u, i)""",
        f"""h = fill(value=0.1, shape=(), dtype='float32')
        z = fill(value=-0.0, shape=(3,), dtype='float32')
        i = fill(value=-1e999, shape=(2, 3), dtype='float32')
        {node("y", "a", "mul 0 #0.1; add #-0.0 1; maximum 2 #-inf", 3)}""",
    ),
    "a chain of scalars is a separate group": Case(
        "s = square(rate); r = neg(s); m = mul(a, r); y = abs(m)",
        f"{node('r', 'rate', 'square 0; neg 1', 2)}; {node('y', 'a, r', 'mul 0 1; abs 2', 3)}",
    ),
    "a single node": Case("s = neg(a); e = exp(s); y = neg(e)"),
    "a group ends at a value that is read outside": Case(
        "s = square(a); i = neg(s); d = add(i, b); y = abs(d); t = reduce_sum(i, axes=(0, 1))",
        f"""{node("i", "a", "square 0; neg 1", 2)}; {node("y", "i, b", "add 0 1; abs 2", 3)}
        t = reduce_sum(i, axes=(0, 1))""",
        fetch="y t",
    ),
    "a detour outside makes no cycle": Case(
        "i = neg(a); e = exp(i); d = add(i, e); y = abs(d)",
        f"i = neg(a); e = exp(i); {node('y', 'i, e', 'add 0 1; abs 2', 3)}",
    ),
    "readers in two groups share a value in neither": Case(
        "s = neg(a); d = add(s, b); y = abs(d); e = add(s, c); z = abs(e)",
        f"s = neg(a); {node('y', 's, b', 'add 0 1; abs 2', 3)}; {node('z', 's, c', 'add 0 1; abs 2', 3)}",
        fetch="y z",
    ),
    "fetched values are outputs": Case(
        "i = square(a); d = abs(i); y = neg(d)", node("y", "a", "square 0; abs 1; neg 2", 3, 1), fetch="i y"
    ),
    "assigned values are outputs, and their assigns come later": Case(
        """v = weights(2, 3); w = weights(2, 3); n = fill(value=0.9, shape=(), dtype='float32'); m = mul(v, n)
        nv = sub(m, a); wv = assign(v, nv, beside='v'); nw = add(w, nv); ww = assign(w, nw, beside='w')""",
        """v = weights(2, 3); w = weights(2, 3); n = fill(value=0.9, shape=(), dtype='float32')
        nw, p = elementwise(v, a, w, program='mul 0 #0.9; sub 3 1; add 2 4', outputs=(5, 4))
        wv = assign(v, p, beside='v'); ww = assign(w, nw, beside='w')""",
        fetch="a",
    ),
    "an assign that is read reads the end of a group": Case(
        "v = weights(2, 3); n = neg(a); i = square(n); w = assign(v, i); e = exp(w); d = add(i, e); y = abs(d)",
        f"""v = weights(2, 3); {node("i", "a", "neg 0; square 1", 2)}; w = assign(v, i); e = exp(w)
        {node("y", "i, e", "add 0 1; abs 2", 3)}""",
    ),
    "an assign that another node waits for reads the end of a group": Case(
        """v = weights(2, 3); n = neg(a); i = square(n); w = assign(v, i); e = exp(b, after='w')
        d = add(i, e); y = abs(d)""",
        f"""v = weights(2, 3); {node("i", "a", "neg 0; square 1", 2)}; w = assign(v, i); e = exp(b, after='w')
        {node("y", "i, e", "add 0 1; abs 2", 3)}""",
    ),
    "a node that others wait for keeps its name": Case(
        "s = square(a); i = neg(s); late = exp(b, after='i'); y = abs(i)",
        f"{node('i', 'a', 'square 0; neg 1', 2)}; late = exp(b, after='i'); y = abs(i)",
        fetch="y late",
    ),
    "a target keeps its name": Case("i = square(a); y = abs(i)", targets="i"),
    "another device": Case("t = neg(a, on='there'); y = abs(t)"),
    "another shape": Case("r = input(3); n = neg(r); d = add(a, n)"),
    "another dtype": Case("i = input(2, dtype='int64'); n = neg(i); y = neg(n)"),
    "a scalar that is widened": Case(
        "n = neg(rate); w = fill(value=2.0, shape=(2, 3), dtype='float32'); m = mul(n, w); y = abs(m)"
    ),
    "layer, device and control inputs": Case(
        "i = square(a, on='there', layer='one', after='b'); y = neg(i, on='there', layer='two', after='c')",
        node("y", "a", "square 0; neg 1", 2, more=", on='there', layer='two', after='c b'"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_nodes_are_fused_as_the_table_says(name: str) -> None:
    check(CASES[name], fuse_elementwise, INPUTS)


def test_a_program_has_a_limit() -> None:
    count = 2 * MAX_STEPS + 3
    before = ["y0 = relu(a)", *(f"y{k} = relu(y{k - 1})" for k in range(1, count))]
    after, source = [], "a"
    for last in (2, 2 + MAX_STEPS, count - 1):
        length = 3 if last == 2 else MAX_STEPS
        after.append(node(f"y{last}", source, "; ".join(f"relu {k}" for k in range(length)), length))
        source = f"y{last}"
    check(Case("\n".join(before), "\n".join(after)), fuse_elementwise, INPUTS)
