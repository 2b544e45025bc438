"""Layouts of variables: the first reader decides, and values computed from a variable follow it."""

from collections.abc import Sequence

import numpy as np
import pytest

from runner.engine.compile.layouts import arrange
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor
from runner.kernels.contract import Arrangement, Attributes, Layout, Spec, plain
from runner.kernels.registry import Registry
from tests.engine.compile.arranging import (
    BACK,
    CONVERT,
    EXP,
    INTO,
    NEG,
    TANH,
    WANTED,
    arranged,
    layout_of,
    started,
    steps,
    variable,
)
from tests.engine.run.fake_kernels import MASKED, NOT_PLAIN, PLAIN, REVERSED, fake_kernel, fake_registry, following
from tests.engine.running import CPU_0, CPU_1, Bench


class Asked:
    """Records the offered layouts and requests plain ones."""

    def __init__(self) -> None:
        self.offered: list[list[str | None]] = []

    def __call__(
        self, attributes: Attributes, ins: Sequence[Spec], outs: Sequence[Spec], offered: Sequence[Layout | None]
    ) -> Arrangement:
        self.offered.append([None if each is None else each.tag for each in offered])
        return Arrangement(tuple(map(plain, ins)), tuple(map(plain, outs)))


def test_kernels_are_offered_the_layouts_of_inputs_and_none_for_unread_variables() -> None:
    graph, x = started()
    w, v = variable(graph, "w"), variable(graph, "v")
    ops.add(graph, ops.neg(graph, x), w)
    ops.add(graph, w, v)
    asked = Asked()
    arranged(graph, [], NEG, CONVERT, fake_kernel("add", asked), settled={"v": WANTED[MASKED]})
    assert asked.offered == [[REVERSED, None], [PLAIN, MASKED]]


def test_variable_has_the_layout_that_its_first_reader_requests() -> None:
    graph = Graph()
    w = variable(graph, "w")
    ops.exp(graph, w)
    ops.neg(graph, w)
    found = arranged(graph, [], NEG, EXP, CONVERT)
    assert layout_of(found, "w") == MASKED
    assert steps(found) == [("exp", MASKED, MASKED), ("convert", MASKED, PLAIN), INTO, ("neg", REVERSED, REVERSED)]


@pytest.mark.parametrize("alias", [ops.identity, ops.stop_gradient])
def test_first_reader_may_read_a_variable_through_an_alias(alias: object) -> None:
    graph = Graph()
    ops.neg(graph, alias(graph, variable(graph, "w")))  # type: ignore[operator]
    found = arranged(graph, [], NEG, CONVERT)
    assert (layout_of(found, "w"), steps(found)) == (REVERSED, [("neg", REVERSED, REVERSED)])


@pytest.mark.parametrize("tag", NOT_PLAIN)
def test_settled_layouts_are_kept(tag: str) -> None:
    graph = Graph()
    w = variable(graph, "w")
    ops.neg(graph, w)
    found = arranged(graph, [w], NEG, CONVERT, settled={"w": WANTED[tag], "unknown": WANTED[MASKED]})
    assert layout_of(found, "w") == tag
    assert found.residents.keys() == {"w"}
    assert found.slots[found.fetches[w]].layout.is_plain


def test_variable_that_is_only_fetched_sent_or_reshaped_is_plain() -> None:
    graph = Graph()
    fetched, sent, seen = (variable(graph, name) for name in ("fetched", "sent", "seen"))
    ops.send(graph, sent, key="k", destination=CPU_1)
    ops.neg(graph, ops.reshape(graph, seen, (6,)))
    found = arranged(graph, [fetched], NEG, CONVERT)
    assert {name: layout_of(found, name) for name in found.residents} == dict.fromkeys(
        ["fetched", "sent", "seen"], PLAIN
    )


def updated() -> Graph:
    """A weight with a velocity: v <- v + dw; w <- w + v; dw is computed from w."""
    graph = Graph()
    w, v = variable(graph, "w"), variable(graph, "v")
    gradient = ops.neg(graph, w)
    velocity = ops.add(graph, v, gradient, name="velocity")
    ops.assign(graph, v, velocity, name="set_v")
    ops.assign(graph, w, ops.add(graph, w, velocity), name="set_w")
    return graph


def test_values_computed_from_a_weight_have_its_layout() -> None:
    found = arranged(updated(), [], NEG, fake_kernel("add", following()), CONVERT)
    assert steps(found) == [
        ("neg", REVERSED, REVERSED),
        ("add", REVERSED, REVERSED),
        ("assign", REVERSED, ""),
        ("add", REVERSED, REVERSED),
        ("assign", REVERSED, ""),
    ]
    assert (layout_of(found, "w"), layout_of(found, "v")) == (REVERSED, REVERSED)


def test_assigned_value_is_converted_to_the_layout_of_its_variable() -> None:
    found = arranged(updated(), [], NEG, CONVERT)
    assert (layout_of(found, "w"), layout_of(found, "v")) == (REVERSED, PLAIN)
    assert steps(found) == [
        ("neg", REVERSED, REVERSED),
        BACK,
        ("add", PLAIN, PLAIN),
        ("assign", PLAIN, ""),
        BACK,
        ("add", PLAIN, PLAIN),
        INTO,
        ("assign", REVERSED, ""),
    ]


def test_variable_that_is_only_assigned_has_the_layout_of_its_value() -> None:
    graph, x = started()
    ops.assign(graph, variable(graph, "w"), ops.neg(graph, x))
    ops.assign(graph, variable(graph, "v"), x)
    found = arranged(graph, [], NEG, CONVERT)
    assert (layout_of(found, "w"), layout_of(found, "v")) == (REVERSED, PLAIN)


def test_output_of_an_assign_is_its_value_without_an_instruction() -> None:
    graph, x = started()
    y = ops.assign(graph, variable(graph, "w"), ops.neg(graph, x))
    ops.neg(graph, y)
    assert [step[0] for step in steps(arranged(graph, [], NEG, CONVERT))] == ["convert", "neg", "assign", "neg"]


def test_fetched_variable_is_copied_before_it_is_overwritten() -> None:
    graph, x = started()
    w = variable(graph, "w")
    seen = ops.reshape(graph, ops.identity(graph, w), (6,))
    kept = variable(graph, "kept")
    ops.assign(graph, w, x)
    found = arranged(graph, [seen, w, kept])
    (copy,) = (i for i in found.instructions if i.op == "convert")
    assert copy.inputs == (found.residents["w"],)
    assert {found.owner[found.fetches[tensor]] for tensor in (seen, w)} == set(copy.outputs)
    assert found.fetches[kept] == found.residents["kept"]
    assert [i.op for i in found.instructions] == ["convert", "assign"]


def test_two_assigns_of_a_variable_are_refused() -> None:
    graph, x = started()
    w = variable(graph, "w")
    for name in ("one", "two"):
        ops.assign(graph, w, x, name=name)
    with pytest.raises(ShapeError, match="variable 'w' is assigned by 'one' and by 'two' in one step"):
        arranged(graph, [])


def test_conversions_do_not_change_values() -> None:
    graph, x = started()
    w = variable(graph, "w")
    y = ops.add(graph, ops.exp(graph, ops.neg(graph, x)), ops.tanh(graph, w))
    flat = ops.neg(graph, ops.reshape(graph, y, (3, 2)))
    ops.assign(graph, w, y)
    bench = Bench(graph, fake_registry(NEG, EXP, TANH, CONVERT), [flat])
    old, value = np.arange(6.0).reshape(2, 3), np.linspace(-1, 1, 6).reshape(2, 3)
    bench.put("w", old)
    fetched = bench.run({x: value})
    new = np.exp(-value) + np.tanh(old)
    np.testing.assert_array_equal(fetched[flat], -new.reshape(3, 2))
    np.testing.assert_array_equal(bench.value("w"), new)
    assert bench.plan.layouts == {"w": WANTED[REVERSED]}


def test_layouts_are_a_function_of_the_graph_and_the_kernels() -> None:
    registry: Registry = fake_registry(NEG, EXP, CONVERT)
    first, second = (arrange(CPU_0, updated(), [Tensor("w")], {}, registry, {}) for _ in range(2))
    assert first == second
