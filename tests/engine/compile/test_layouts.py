"""Physical layouts: kernels get what they want, with as few conversions as that takes, and users see C order."""

from __future__ import annotations

import numpy as np
import pytest

from runner.engine.graph import ops
from runner.engine.graph.op import ShapeError
from runner.kernels.contract import KernelError
from tests.engine.compile.arranging import (
    BACK,
    CONVERT,
    EXP,
    INTO,
    NEG,
    SPEC,
    TANH,
    WANTED,
    arranged,
    started,
    steps,
)
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


def test_what_comes_in_and_what_goes_out_is_plain() -> None:
    graph, x = started()
    y = ops.neg(graph, x)
    found = arranged(graph, [x, y], NEG, CONVERT)
    assert steps(found) == [INTO, ("neg", REVERSED, REVERSED), BACK]
    assert [found.slots[slot].layout for slot in found.fetches.values()] == [WANTED[PLAIN]] * 2
    assert found.slots[found.feeds[0].slot].layout == WANTED[PLAIN]


def test_nothing_is_converted_between_kernels_that_agree() -> None:
    graph, x = started()
    ops.neg(graph, ops.neg(graph, ops.neg(graph, x)))
    assert steps(arranged(graph, [], NEG, CONVERT)) == [INTO, *[("neg", REVERSED, REVERSED)] * 3]


def test_a_kernel_may_give_another_layout_than_it_takes() -> None:
    graph, x = started()
    ops.exp(graph, ops.tanh(graph, x))
    assert steps(arranged(graph, [], TANH, EXP, CONVERT)) == [
        INTO,
        ("tanh", REVERSED, MASKED),
        ("exp", MASKED, MASKED),
    ]


def test_a_value_is_converted_once_for_all_who_want_it_so() -> None:
    graph, x = started()
    y = ops.identity(graph, x)
    for value in (x, y, ops.stop_gradient(graph, y)):
        ops.neg(graph, value)
        ops.exp(graph, value)
    found = arranged(graph, [x], NEG, EXP, CONVERT)
    assert [step for step in steps(found) if step[0] == "convert"] == [INTO, ("convert", PLAIN, MASKED)]
    assert len({i.inputs for i in found.instructions if i.op == "neg"}) == 1


def test_a_value_that_is_read_twice_by_one_node_is_converted_once() -> None:
    graph, x = started()
    ops.add(graph, x, x)
    found = arranged(graph, [], fake_kernel("add", always(MASKED, PLAIN)), CONVERT)
    assert steps(found) == [("convert", PLAIN, MASKED), ("add", MASKED, PLAIN)]
    assert len(set(found.instructions[-1].inputs)) == 1


def test_a_value_may_be_wanted_in_two_layouts_by_one_node() -> None:
    graph, x = started()
    ops.add(graph, x, x)
    found = arranged(graph, [], fake_kernel("add", always([MASKED, REVERSED], PLAIN)), CONVERT)
    assert [found.slots[slot].layout.tag for slot in found.instructions[-1].inputs] == [MASKED, REVERSED]


def test_a_fetch_that_is_converted_back_serves_all_who_want_it_plain() -> None:
    graph, x = started()
    y = ops.neg(graph, x)
    ops.exp(graph, y)
    found = arranged(graph, [y], NEG, CONVERT)
    assert steps(found) == [INTO, ("neg", REVERSED, REVERSED), BACK, ("exp", PLAIN, PLAIN)]


def test_between_two_strange_layouts_the_way_is_over_the_plain_one() -> None:
    graph, x = started()
    ops.exp(graph, ops.neg(graph, x))
    way = [BACK, ("convert", PLAIN, MASKED), ("exp", MASKED, MASKED)]
    assert steps(arranged(graph, [], NEG, EXP, CONVERT))[2:] == way
    straight = fake_kernel("convert", converting({*VIA_PLAIN, (REVERSED, MASKED)}))
    assert steps(arranged(graph, [], NEG, EXP, straight))[2:] == [("convert", REVERSED, MASKED), way[-1]]


def test_the_plain_half_of_the_way_is_shared() -> None:
    graph, x = started()
    y = ops.neg(graph, x)
    ops.exp(graph, y)
    ops.square(graph, y)
    found = steps(arranged(graph, [y], NEG, EXP, CONVERT))
    assert [step for step in found if step[0] == "convert"] == [INTO, BACK, ("convert", PLAIN, MASKED)]


@pytest.mark.parametrize("pairs", [{(PLAIN, MASKED)}, {(MASKED, PLAIN)}])
def test_a_layout_that_no_kernel_converts_is_refused_with_the_reader(pairs: set[tuple[str, str]]) -> None:
    graph, x = started()
    ops.square(graph, ops.exp(graph, x, name="e"), name="s")
    reader = "s" if (PLAIN, MASKED) in pairs else "e"
    expected = rf"node '{reader}': no kernel converts float64\[2,3\] from .*tag='.*to .*tag='"
    with pytest.raises(ShapeError, match=expected):
        arranged(graph, [], EXP, fake_kernel("convert", converting(pairs)))


def test_a_layout_that_cannot_leave_is_refused_with_the_fetch() -> None:
    graph, x = started()
    y = ops.exp(graph, x, name="e")
    with pytest.raises(ShapeError, match="node 'fetch/e:0': no kernel converts"):
        arranged(graph, [y], EXP, fake_kernel("convert", converting({(PLAIN, MASKED)})))


def test_a_node_without_a_kernel_is_refused() -> None:
    graph, x = started()
    ops.neg(graph, x)
    with pytest.raises(KernelError, match=r"no kernel for op 'neg' .* on device type 'gpu'"):
        arranged(graph, [], device=GPU_0)


def test_the_kernel_of_lower_rank_is_taken_where_a_better_one_refuses() -> None:
    graph, x = started()
    ops.neg(graph, x)

    def refuse(*asked: object) -> None:
        return None

    found = arranged(graph, [], fake_kernel("neg", refuse))
    assert [i.library for i in found.instructions] == ["numpy"]


def test_what_is_sent_and_received_is_plain() -> None:
    graph, x = started()
    y = ops.neg(graph, x)
    ops.send(graph, y, key="there", destination=CPU_1)
    ops.neg(graph, ops.recv(graph, key="back", source=CPU_1, shape=SPEC.shape, dtype=SPEC.dtype))
    found = arranged(graph, [], NEG, CONVERT)
    assert steps(found) == [
        INTO,
        ("neg", REVERSED, REVERSED),
        BACK,
        ("send", PLAIN, ""),
        ("recv", "", PLAIN),
        INTO,
        ("neg", REVERSED, REVERSED),
    ]


def test_aliases_are_no_instructions_and_share_their_input_s_memory() -> None:
    graph, x = started()
    y = ops.neg(graph, x)
    flat = ops.reshape(graph, ops.stop_gradient(graph, ops.identity(graph, y)), (6,))
    found = arranged(graph, [flat])
    assert steps(found) == [("neg", PLAIN, PLAIN)]
    slot = found.fetches[flat]
    assert (found.slots[slot].spec.shape, found.owner[slot]) == ((6,), found.instructions[0].outputs[0])


def test_another_shape_is_seen_in_a_plain_copy() -> None:
    graph, x = started()
    flat = ops.reshape(graph, ops.neg(graph, x), (6,))
    ops.neg(graph, flat)
    found = arranged(graph, [flat], NEG, CONVERT)
    assert steps(found) == [INTO, ("neg", REVERSED, REVERSED), BACK, INTO, ("neg", REVERSED, REVERSED)]
    assert found.instructions[3].inputs == (found.fetches[flat],)


def test_a_copy_in_the_graph_leaves_the_layout_as_it_is() -> None:
    graph, x = started()
    first = ops.convert(graph, x)
    second = ops.convert(graph, ops.neg(graph, first))
    ops.neg(graph, second)
    assert steps(arranged(graph, [], NEG, CONVERT)) == [
        ("convert", PLAIN, PLAIN),
        INTO,
        ("neg", REVERSED, REVERSED),
        ("convert", REVERSED, REVERSED),
        ("neg", REVERSED, REVERSED),
    ]


BETWEEN = ("cast", REVERSED, MASKED)
"""A cast between the layouts that two neighbours want."""


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
def test_a_cast_between_two_strange_layouts_goes_by_way_of_plain_where_it_must(
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


def test_a_cast_goes_straight_where_a_kernel_converts_between_its_layouts() -> None:
    graph, x = started()
    ops.exp(graph, ops.cast(graph, ops.neg(graph, x), "float32"))
    straight = fake_kernel("convert", converting({*VIA_PLAIN, (REVERSED, MASKED)}))
    found = arranged(graph, [], NEG, EXP, fake_kernel("cast", always(REVERSED, REVERSED)), straight)
    assert steps(found)[2:4] == [("cast", REVERSED, REVERSED), ("convert", REVERSED, MASKED)]


def test_a_cast_that_leads_by_way_of_plain_gives_the_rounded_values() -> None:
    graph, x = started()
    y = ops.exp(graph, ops.cast(graph, ops.neg(graph, x), "float32"))
    bench = Bench(graph, fake_registry(NEG, EXP, fake_kernel("cast", always(MASKED, REVERSED)), CONVERT), [y])
    value = np.linspace(-1, 1, 6).reshape(SPEC.shape)
    np.testing.assert_array_equal(bench.run({x: value})[y], np.exp((-value).astype(np.float32)))
