"""Physical layouts: kernels get the layouts that they request with few conversions; feeds and fetches have C order.

The first reader of a variable decides the layout of the variable; values computed from the variable use that layout.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from runner.engine.compile.layouts import Arranged, arrange
from runner.engine.graph import ShapeError, Tensor, TensorSpec
from runner.kernels.contract import Arrangement, Attributes, Kernel, KernelError, Layout, Spec, plain
from tests.engine.compile.passes.graph_text import Text
from tests.engine.run.fake_kernels import (
    MASKED,
    NOT_PLAIN,
    PLAIN,
    REVERSED,
    VIA_PLAIN,
    always,
    converting,
    fake_kernel,
    fake_registry,
    following,
    layout,
)
from tests.engine.running import CPU_0, CPU_1, GPU_0, Bench

LETTERS = {REVERSED: "r", MASKED: "m", PLAIN: "p"}
WANTED = {tag: layout(tag, TensorSpec((2, 3), "float64")) for tag in (PLAIN, *NOT_PLAIN)}
CONVERT = fake_kernel("convert", converting(VIA_PLAIN))
STRAIGHT = fake_kernel("convert", converting({*VIA_PLAIN, (REVERSED, MASKED)}))
NEG = fake_kernel("neg", always(REVERSED, REVERSED))
EXP = fake_kernel("exp", always(MASKED, MASKED))
TANH = fake_kernel("tanh", always(REVERSED, MASKED))
FOLLOW = fake_kernel("add", following)
SENT, RECEIVED = (
    f"send({{}}, key='k', destination='{CPU_1}')",
    f"r = recv(key='l', source='{CPU_1}', shape=(2, 3), dtype='float64')",
)


def parsed(text: str) -> Text:
    """Return a float64 graph with a placeholder x, a variable w and the nodes of ``text``."""
    return Text.parse(f"x = input(2, 3); w = weights(2, 3); {text}", "float64")


def arranged(
    text: str, fetch: str, *kernels: Kernel, settled: Mapping[str, Layout] | None = None, device: str = CPU_0
) -> Arranged:
    graph, fetches = parsed(text).graph, parsed(text).names(fetch)
    if not any(kernel.op == "convert" for kernel in kernels):
        kernels = (*kernels, CONVERT)
    feeds = {node[0]: node[0] for node in graph if node.op == "placeholder"}
    return arrange(device, graph, fetches, feeds, fake_registry(*kernels), settled or {})


def steps(found: Arranged) -> str:
    """Return the instructions as text. ``neg:rm`` reads layout REVERSED and writes MASKED; p: PLAIN, -: no operand."""
    letters = [
        "".join(LETTERS[side[0].tag] if side else "-" for side in (i.arrangement.inputs, i.arrangement.outputs))
        for i in found.instructions
    ]
    return " ".join(f"{i.op}:{each}" for i, each in zip(found.instructions, letters, strict=True))


def layouts(found: Arranged) -> str:
    """Return the layouts of variables, such as ``v:p w:r``."""
    tags = {name: found.slots[slot].layout.tag for name, slot in found.residents.items()}
    return " ".join(f"{name}:{LETTERS[tag]}" for name, tag in sorted(tags.items()))


Case = tuple[str, str, str, tuple[Kernel, ...], str]


def case(text: str, expected: str, *kernels: Kernel, fetch: str = "", variables: str = "w:p") -> Case:
    """Return a case. kernels: added to the reference ones. expected, variables: texts of ``steps`` and ``layouts``."""
    return text, expected, fetch, kernels, variables


# The gradient of w updates a velocity v, which updates w.
UPDATED = """v = weights(2, 3); g = neg(w); velocity = add(v, g); set_v = assign(v, velocity); n = add(w, velocity)
    set_w = assign(w, n)"""
CASES = {
    "fetches and feeds are plain": case("y = neg(x)", "convert:pr neg:rr convert:rp", NEG, fetch="x y"),
    "kernels that agree": case("a = neg(x); b = neg(a); c = neg(b)", "convert:pr neg:rr neg:rr neg:rr", NEG),
    "a kernel with two layouts": case("t = tanh(x); e = exp(t)", "convert:pr tanh:rm exp:mm", TANH, EXP),
    "a value is converted once for all readers": case(
        "y = identity(x); a = neg(x); b = exp(x); c = neg(y); s = stop_gradient(y); d = neg(s); e = exp(s)",
        "convert:pr neg:rr convert:pm exp:mm neg:rr neg:rr exp:mm",
        NEG,
        EXP,
        fetch="x",
    ),
    "a value that one node reads twice": case(
        "y = add(x, x)", "convert:pm add:mp", fake_kernel("add", always(MASKED, PLAIN))
    ),
    "a value that one node reads in two layouts": case(
        "y = add(x, x)", "convert:pm convert:pr add:mp", fake_kernel("add", always([MASKED, REVERSED], PLAIN))
    ),
    "a plain fetch serves all readers of the plain layout": case(
        "y = neg(x); e = exp(y)", "convert:pr neg:rr convert:rp exp:pp", NEG, fetch="y"
    ),
    "a conversion through the plain layout": case(
        "y = neg(x); e = exp(y)", "convert:pr neg:rr convert:rp convert:pm exp:mm", NEG, EXP
    ),
    "a direct conversion between two layouts": case(
        "y = neg(x); e = exp(y)", "convert:pr neg:rr convert:rm exp:mm", NEG, EXP, STRAIGHT
    ),
    "the plain intermediate value is shared": case(
        "y = neg(x); e = exp(y); s = square(y)",
        "convert:pr neg:rr convert:rp convert:pm exp:mm square:pp",
        NEG,
        EXP,
        fetch="y",
    ),
    "sent and received values are plain": case(
        f"y = neg(x); {SENT.format('y')}; {RECEIVED}; z = neg(r)",
        "convert:pr neg:rr convert:rp send:p- recv:-p convert:pr neg:rr",
        NEG,
    ),
    "aliases need no instructions": case(
        "y = neg(x); i = identity(y); s = stop_gradient(i); f = reshape(s, shape=(6,))", "neg:pp", fetch="f"
    ),
    "a value is reshaped in the plain layout": case(
        "y = neg(x); f = reshape(y, shape=(6,)); z = neg(f)",
        "convert:pr neg:rr convert:rp convert:pr neg:rr",
        NEG,
        fetch="f",
    ),
    "a copy in the graph keeps the layout": case(
        "a = convert(x); b = neg(a); c = convert(b); d = neg(c)", "convert:pp convert:pr neg:rr convert:rr neg:rr", NEG
    ),
    "a cast between two layouts": case(
        "y = neg(x); c = cast(y, dtype='float32'); e = exp(c)",
        "convert:pr neg:rr cast:rr convert:rm exp:mm",
        NEG,
        EXP,
        fake_kernel("cast", always(REVERSED, REVERSED)),
        STRAIGHT,
    ),
    "the first reader of a variable decides its layout": case(
        "a = exp(w); b = neg(w)", "exp:mm convert:mp convert:pr neg:rr", NEG, EXP, variables="w:m"
    ),
    **{
        f"the first reader reads a variable through {alias}": case(
            f"v = {alias}(w); a = neg(v)", "neg:rr", NEG, variables="w:r"
        )
        for alias in ("identity", "stop_gradient")
    },
    "variables that are only fetched, sent or reshaped are plain": case(
        f"v = weights(2, 3); u = weights(2, 3); {SENT.format('v')}; r = reshape(u, shape=(6,)); n = neg(r)",
        "convert:pp send:p- convert:pr neg:rr",
        NEG,
        fetch="w",
        variables="u:p v:p w:p",
    ),
    "values computed from a weight have its layout": case(
        UPDATED, "neg:rr add:rr assign:r- add:rr assign:r-", NEG, FOLLOW, variables="v:r w:r"
    ),
    "an assigned value is converted to the layout of its variable": case(
        UPDATED, "neg:rr convert:rp add:pp assign:p- convert:rp add:pp convert:pr assign:r-", NEG, variables="v:p w:r"
    ),
    "variables that are only assigned have the layouts of their values": case(
        "v = weights(2, 3); n = neg(x); s = assign(w, n); t = assign(v, x)",
        "convert:pr neg:rr assign:r- assign:p-",
        NEG,
        variables="v:p w:r",
    ),
    "readers of an assign read the assigned value": case(
        "n = neg(x); s = assign(w, n); a = neg(s)", "convert:pr neg:rr assign:r- neg:rr", NEG, variables="w:r"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_layouts_are_converted_as_the_table_says(name: str) -> None:
    text, expected, fetch, kernels, variables = CASES[name]
    found = arranged(text, fetch, *kernels)
    assert (steps(found), layouts(found)) == (expected, variables)
    for slot in (*found.fetches.values(), *(feed.slot for feed in found.feeds)):
        assert found.slots[slot].layout.is_plain
    for instruction in found.instructions:
        for slot, each in zip(instruction.inputs, instruction.arrangement.inputs, strict=True):
            assert found.slots[slot].layout == each


def test_alias_shares_the_memory_of_its_input() -> None:
    found = arranged(CASES["aliases need no instructions"][0], "f")
    (slot,) = found.fetches.values()
    assert (found.slots[slot].spec.shape, found.owner[slot]) == ((6,), found.instructions[0].outputs[0])


@pytest.mark.parametrize(
    ("text", "pair", "fetch", "reader"),
    [
        ("e = exp(x); s = square(e)", (PLAIN, MASKED), "", "s"),
        ("e = exp(x); s = square(e)", (MASKED, PLAIN), "", "e"),
        ("e = exp(x); s = square(e)", (PLAIN, MASKED), "e", "s"),
        ("e = exp(x)", (PLAIN, MASKED), "e", "fetch/e:0"),
    ],
)
def test_layout_that_no_kernel_converts_is_refused_with_the_reader_or_the_fetch(
    text: str, pair: tuple[str, str], fetch: str, reader: str
) -> None:
    refused = rf"node '{reader}': no kernel converts float64\[2,3\] from .*tag='.*to .*tag='"
    with pytest.raises(ShapeError, match=refused):
        arranged(text, fetch, EXP, fake_kernel("convert", converting({pair})))


def test_node_without_a_kernel_on_the_device_type_is_refused() -> None:
    with pytest.raises(KernelError, match=r"no kernel for op 'neg' .* on device type 'gpu'"):
        arranged("y = neg(x)", "", device=GPU_0)


CAST = "n = neg(x); c = cast(n, dtype='float32'); y = exp(c)"


@pytest.mark.parametrize(
    ("taken", "given", "around"),
    [
        (REVERSED, MASKED, "cast:rm"),
        (PLAIN, MASKED, "convert:rp cast:pm"),
        (MASKED, MASKED, "convert:rp convert:pm cast:mm"),
        (REVERSED, REVERSED, "cast:rr convert:rp convert:pm"),
        (MASKED, REVERSED, "convert:rp convert:pm cast:mr convert:rp convert:pm"),
    ],
)
def test_cast_converts_through_the_plain_layout_if_necessary(taken: str, given: str, around: str) -> None:
    kernels = (NEG, EXP, fake_kernel("cast", always(taken, given)), CONVERT)
    assert steps(arranged(CAST, "", *kernels)) == f"convert:pr neg:rr {around} exp:mm"
    bench = Bench(parsed(CAST).graph, fake_registry(*kernels))
    specs = [[bench.plan.slots[slot].spec.dtype for slot in (*i.inputs, *i.outputs)] for i in bench.plan.instructions]
    where = [i.op for i in bench.plan.instructions].index("cast")
    assert {dtype for each in specs[:where] for dtype in each} == {"float64"}
    assert specs[where] == ["float64", "float32"]
    assert {dtype for each in specs[where + 1 :] for dtype in each} == {"float32"}


def test_cast_through_the_plain_layout_gives_the_rounded_values() -> None:
    x, y = parsed(CAST).names("x y")
    registry = fake_registry(NEG, EXP, fake_kernel("cast", always(MASKED, REVERSED)), CONVERT)
    value = np.linspace(-1, 1, 6).reshape(2, 3)
    found = Bench(parsed(CAST).graph, registry, [y]).run({x: value})[y]
    np.testing.assert_array_equal(found, np.exp((-value).astype(np.float32)))


def test_kernels_are_offered_the_decided_layouts_of_their_inputs() -> None:
    offers: list[list[str | None]] = []

    def asked(
        attributes: Attributes, ins: Sequence[Spec], outs: Sequence[Spec], offered: Sequence[Layout | None]
    ) -> Arrangement:
        offers.append([None if each is None else each.tag for each in offered])
        return Arrangement(tuple(map(plain, ins)), tuple(map(plain, outs)))

    text = "v = weights(2, 3); n = neg(x); a = add(n, w); b = add(w, v)"
    arranged(text, "", NEG, fake_kernel("add", asked), settled={"v": WANTED[MASKED]})
    assert offers == [[REVERSED, None], [PLAIN, MASKED]]


@pytest.mark.parametrize("tag", NOT_PLAIN)
def test_layouts_that_are_already_decided_are_kept(tag: str) -> None:
    found = arranged("n = neg(w)", "w", NEG, settled={"w": WANTED[tag], "unknown": WANTED[MASKED]})
    assert layouts(found) == f"w:{LETTERS[tag]}"
    assert found.slots[found.fetches[Tensor("w")]].layout.is_plain


def test_fetched_variable_is_copied_before_it_is_overwritten() -> None:
    text = "i = identity(w); seen = reshape(i, shape=(6,)); kept = weights(2, 3); s = assign(w, x)"
    found = arranged(text, "seen w kept")
    assert steps(found) == "convert:pp assign:p-"
    copy = found.instructions[0]
    assert copy.inputs == (found.residents["w"],)
    assert {found.owner[found.fetches[Tensor(name)]] for name in ("seen", "w")} == set(copy.outputs)
    assert found.fetches[Tensor("kept")] == found.residents["kept"]


def test_two_assigns_of_a_variable_are_refused() -> None:
    with pytest.raises(ShapeError, match="variable 'w' is assigned by 'one' and by 'two' in one step"):
        arranged("one = assign(w, x); two = assign(w, x)", "")
