"""Physical layouts: kernels get the layouts that they request, with few conversions, and users see C order."""

import numpy as np
import pytest

from runner.engine.compile.layouts import Arranged
from runner.engine.graph import ops
from runner.engine.graph.op import ShapeError
from runner.kernels.contract import Kernel, KernelError
from tests.engine.compile.arranging import BACK, CONVERT, EXP, INTO, NEG, SPEC, TANH, arranged, started, steps
from tests.engine.compile.passes.graph_text import Text
from tests.engine.run.fake_kernels import (
    MASKED,
    PLAIN,
    REVERSED,
    VIA_PLAIN,
    always,
    converting,
    fake_kernel,
    fake_registry,
)
from tests.engine.running import CPU_1, GPU_0, Bench

TAGS = {"p": PLAIN, "r": REVERSED, "m": MASKED, "-": ""}
WIRES = f"send(y, key='k', destination='{CPU_1}'); r = recv(key='l', source='{CPU_1}', shape=(2, 3), dtype='float64')"
STRAIGHT = fake_kernel("convert", converting({*VIA_PLAIN, (REVERSED, MASKED)}))


def expected(text: str) -> list[tuple[str, str, str]]:
    """Steps from a text: ``neg:rm`` takes the reversed layout and gives the masked one, ``p`` is plain, ``-`` none."""
    pairs = [step.split(":") for step in text.split()]
    return [(op, *(TAGS[tag] for tag in tags)) for op, tags in pairs]


def arranged_text(text: str, fetch: str, *kernels: Kernel) -> Arranged:
    graph = Text.parse(f"x = input(2, 3); {text}", "float64")
    return arranged(graph.graph, graph.names(fetch), *kernels)


CASES: dict[str, tuple[str, str, tuple[Kernel, ...], str]] = {
    "fetches and feeds are plain": ("y = neg(x)", "x y", (NEG,), "convert:pr neg:rr convert:rp"),
    "kernels that agree": ("a = neg(x); b = neg(a); c = neg(b)", "", (NEG,), "convert:pr neg:rr neg:rr neg:rr"),
    "a kernel with two layouts": ("t = tanh(x); e = exp(t)", "", (TANH, EXP), "convert:pr tanh:rm exp:mm"),
    "a value is converted once for all readers": (
        "y = identity(x); a = neg(x); b = exp(x); c = neg(y); s = stop_gradient(y); d = neg(s); e = exp(s)",
        "x",
        (NEG, EXP),
        "convert:pr neg:rr convert:pm exp:mm neg:rr neg:rr exp:mm",
    ),
    "a value that one node reads twice": (
        "y = add(x, x)",
        "",
        (fake_kernel("add", always(MASKED, PLAIN)),),
        "convert:pm add:mp",
    ),
    "a value that one node reads in two layouts": (
        "y = add(x, x)",
        "",
        (fake_kernel("add", always([MASKED, REVERSED], PLAIN)),),
        "convert:pm convert:pr add:mp",
    ),
    "a plain fetch serves all readers of the plain layout": (
        "y = neg(x); e = exp(y)",
        "y",
        (NEG,),
        "convert:pr neg:rr convert:rp exp:pp",
    ),
    "from one layout to another by the plain one": (
        "y = neg(x); e = exp(y)",
        "",
        (NEG, EXP),
        "convert:pr neg:rr convert:rp convert:pm exp:mm",
    ),
    "from one layout to another directly": (
        "y = neg(x); e = exp(y)",
        "",
        (NEG, EXP, STRAIGHT),
        "convert:pr neg:rr convert:rm exp:mm",
    ),
    "the plain half of the way is shared": (
        "y = neg(x); e = exp(y); s = square(y)",
        "y",
        (NEG, EXP),
        "convert:pr neg:rr convert:rp convert:pm exp:mm square:pp",
    ),
    "sent and received values are plain": (
        f"y = neg(x); {WIRES}; z = neg(r)",
        "",
        (NEG,),
        "convert:pr neg:rr convert:rp send:p- recv:-p convert:pr neg:rr",
    ),
    "aliases are no instructions": (
        "y = neg(x); i = identity(y); s = stop_gradient(i); f = reshape(s, shape=(6,))",
        "f",
        (),
        "neg:pp",
    ),
    "another shape is a plain copy": (
        "y = neg(x); f = reshape(y, shape=(6,)); z = neg(f)",
        "f",
        (NEG,),
        "convert:pr neg:rr convert:rp convert:pr neg:rr",
    ),
    "a copy in the graph keeps the layout": (
        "a = convert(x); b = neg(a); c = convert(b); d = neg(c)",
        "",
        (NEG,),
        "convert:pp convert:pr neg:rr convert:rr neg:rr",
    ),
    "a cast between two layouts": (
        "y = neg(x); c = cast(y, dtype='float32'); e = exp(c)",
        "",
        (NEG, EXP, fake_kernel("cast", always(REVERSED, REVERSED)), STRAIGHT),
        "convert:pr neg:rr cast:rr convert:rm exp:mm",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_layouts_are_converted_as_the_table_says(name: str) -> None:
    text, fetch, kernels, expected_steps = CASES[name]
    if not any(kernel.op == "convert" for kernel in kernels):
        kernels = (*kernels, CONVERT)
    found = arranged_text(text, fetch, *kernels)
    assert steps(found) == expected(expected_steps)
    for slot in (*found.fetches.values(), *(feed.slot for feed in found.feeds)):
        assert found.slots[slot].layout.is_plain
    for instruction in found.instructions:
        for slot, layout in zip(instruction.inputs, instruction.arrangement.inputs, strict=True):
            assert found.slots[slot].layout == layout


def test_alias_shares_the_memory_of_its_input() -> None:
    found = arranged_text(CASES["aliases are no instructions"][0], "f")
    (slot,) = found.fetches.values()
    assert (found.slots[slot].spec.shape, found.owner[slot]) == ((6,), found.instructions[0].outputs[0])


@pytest.mark.parametrize(
    ("pairs", "fetch", "reader"),
    [({(PLAIN, MASKED)}, "", "s"), ({(MASKED, PLAIN)}, "", "e"), ({(PLAIN, MASKED)}, "e", "s")],
)
def test_layout_that_no_kernel_converts_is_refused_with_the_reader(
    pairs: set[tuple[str, str]], fetch: str, reader: str
) -> None:
    refused = rf"node '{reader}': no kernel converts float64\[2,3\] from .*tag='.*to .*tag='"
    with pytest.raises(ShapeError, match=refused):
        arranged_text("e = exp(x); s = square(e)", fetch, EXP, fake_kernel("convert", converting(pairs)))


def test_layout_that_cannot_leave_is_refused_with_the_fetch() -> None:
    with pytest.raises(ShapeError, match="node 'fetch/e:0': no kernel converts"):
        arranged_text("e = exp(x)", "e", EXP, fake_kernel("convert", converting({(PLAIN, MASKED)})))


def test_node_without_a_kernel_is_refused() -> None:
    graph, x = started()
    ops.neg(graph, x)
    with pytest.raises(KernelError, match=r"no kernel for op 'neg' .* on device type 'gpu'"):
        arranged(graph, [], device=GPU_0)


def test_kernel_of_lower_priority_is_used_if_a_better_one_refuses() -> None:
    found = arranged_text("y = neg(x)", "", fake_kernel("neg", lambda *asked: None))
    assert [i.library for i in found.instructions] == ["numpy"]


BETWEEN = ("cast", REVERSED, MASKED)
"""A cast between the layouts that two neighbours request."""


@pytest.mark.parametrize(
    ("taken", "given", "around"),
    [
        (REVERSED, MASKED, [BETWEEN]),
        (PLAIN, MASKED, [BACK, ("cast", PLAIN, MASKED)]),
        (MASKED, MASKED, [BACK, ("convert", PLAIN, MASKED), ("cast", MASKED, MASKED)]),
        (REVERSED, REVERSED, [("cast", REVERSED, REVERSED), BACK, ("convert", PLAIN, MASKED)]),
        (
            MASKED,
            REVERSED,
            [BACK, ("convert", PLAIN, MASKED), ("cast", MASKED, REVERSED), BACK, ("convert", PLAIN, MASKED)],
        ),
    ],
)
def test_cast_between_two_layouts_goes_by_the_plain_one_if_necessary(
    taken: str, given: str, around: list[tuple[str, str, str]]
) -> None:
    graph, x = started()
    ops.exp(graph, ops.cast(graph, ops.neg(graph, x), "float32", name="c"))
    kernels = (NEG, EXP, fake_kernel("cast", always(taken, given)), CONVERT)
    assert steps(arranged(graph, [], *kernels)) == [INTO, ("neg", REVERSED, REVERSED), *around, ("exp", MASKED, MASKED)]
    plan = Bench(graph, fake_registry(*kernels)).plan
    assert plan.conversions == 1 + sum(step[0] == "convert" for step in around)
    dtypes = [tuple(plan.slots[slot].spec.dtype for slot in (*i.inputs, *i.outputs)) for i in plan.instructions]
    where = [i.op for i in plan.instructions].index("cast")
    assert [set(each) for each in dtypes[:where]] == [{"float64"}] * where
    assert dtypes[where] == ("float64", "float32")
    assert {dtype for each in dtypes[where + 1 :] for dtype in each} == {"float32"}


def test_cast_by_the_plain_layout_gives_the_rounded_values() -> None:
    graph, x = started()
    y = ops.exp(graph, ops.cast(graph, ops.neg(graph, x), "float32"))
    bench = Bench(graph, fake_registry(NEG, EXP, fake_kernel("cast", always(MASKED, REVERSED)), CONVERT), [y])
    value = np.linspace(-1, 1, 6).reshape(SPEC.shape)
    np.testing.assert_array_equal(bench.run({x: value})[y], np.exp((-value).astype(np.float32)))
