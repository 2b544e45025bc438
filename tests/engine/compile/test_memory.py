"""Places in memory: what shares bytes, and what never may."""

from __future__ import annotations

import pytest

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from tests.engine.compile.laying import LINE, SIZE, Laid, chain, greedy, placeholder, variable


def test_what_is_read_for_the_last_time_makes_room() -> None:
    graph = Graph()
    laid = Laid(graph, [chain(graph, placeholder(graph), 9)])
    assert laid.placed.arena_bytes == 2 * LINE
    assert [laid.at(f"n{k}").offset for k in range(4)] == [LINE, 0, LINE, 0]


def test_a_chain_in_place_needs_the_memory_of_one_value() -> None:
    graph = Graph()
    laid = Laid(graph, [chain(graph, placeholder(graph), 9)], greedy("neg"))
    assert laid.placed.arena_bytes == LINE


def test_what_is_still_read_keeps_its_memory() -> None:
    graph = Graph()
    x = placeholder(graph)
    y = chain(graph, x, 3)
    laid = Laid(graph, [ops.add(graph, y, x)], greedy("neg"))
    assert laid.at("n0") != laid.fed()
    assert laid.at("n2") == laid.at("n0")
    assert laid.placed.arena_bytes == 3 * LINE


def test_what_is_fetched_keeps_its_memory_to_the_end() -> None:
    graph = Graph()
    x = placeholder(graph)
    y = chain(graph, x, 4)
    fetches = [x, Tensor("n1"), ops.identity(graph, Tensor("n2")), y]
    laid = Laid(graph, fetches, greedy("neg"))
    places = {laid.fed(), *(laid.at(f"n{k}") for k in (1, 2, 3))}
    assert len(places) == 4
    assert laid.at("n0") == laid.at("n1")


def test_what_nobody_reads_makes_room_at_once() -> None:
    graph = Graph()
    x = placeholder(graph)
    for _ in range(5):
        ops.neg(graph, x)
    assert Laid(graph, []).placed.arena_bytes == 2 * LINE


def test_an_alias_keeps_memory_alive() -> None:
    graph = Graph()
    x = placeholder(graph)
    seen = ops.reshape(graph, ops.neg(graph, x, name="n"), (2, 4))
    late = ops.neg(graph, ops.reshape(graph, ops.exp(graph, x), (2, 4)))
    laid = Laid(graph, [ops.add(graph, late, ops.identity(graph, seen), name="sum")], greedy("add"), greedy("neg"))
    assert laid.placed.places[laid.arranged.instructions[-1].inputs[1]] == laid.at("n")


def test_an_output_takes_over_an_input_seen_through_an_alias() -> None:
    graph = Graph()
    y = ops.neg(graph, placeholder(graph), name="n")
    laid = Laid(graph, [ops.exp(graph, ops.reshape(graph, y, (2, 4)), name="e")], greedy("exp"))
    assert laid.at("e") == laid.at("n")


def test_only_the_pairs_a_kernel_allows_share_memory() -> None:
    graph = Graph()
    a, b = placeholder(graph, "a"), placeholder(graph, "b")
    y = ops.add(graph, a, b, name="sum")
    assert Laid(graph, [y], greedy("add", [(1, 0)])).at("sum") == Laid(graph, [y]).fed(1)
    assert Laid(graph, [y], greedy("add", [(0, 0), (1, 0)])).at("sum") == Laid(graph, [y]).fed(0)
    assert Laid(graph, [y]).at("sum").offset == 2 * LINE


def test_a_value_that_is_read_twice_may_be_taken_over_where_both_may() -> None:
    graph = Graph()
    x = placeholder(graph)
    y = ops.add(graph, x, ops.identity(graph, x), name="sum")
    for pairs, place in {((0, 0),): LINE, ((1, 0),): LINE, ((0, 0), (1, 0)): 0}.items():
        assert Laid(graph, [y], greedy("add", pairs)).at("sum").offset == place


def test_an_input_gives_its_memory_to_one_output_and_an_output_takes_one() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (2 * SIZE,), "float64", name="x")
    low, high = ops.split(graph, x, 0, (SIZE, SIZE), name="parts")
    laid = Laid(graph, [low, high], greedy("split", [(0, 0), (0, 1)]))
    assert laid.fed() not in (laid.at("parts", 0), laid.at("parts", 1))

    graph = Graph()
    gradient, gamma = (placeholder(graph, name) for name in ("dy", "gamma"))
    mean, variance = (placeholder(graph, name) for name in ("mean", "variance"))
    x, dy = (ops.placeholder(graph, (3, SIZE), "float64", name=name) for name in ("x", "d"))
    fetches = ops.batch_norm_gradient(graph, x, gamma, mean, variance, dy, epsilon=1e-3)
    every_pair = [(i, o) for i in range(5) for o in range(3)]
    laid = Laid(graph, [*fetches, gradient], greedy("batch_norm_gradient", every_pair))
    (call,) = laid.placed.instructions
    taken = [laid.placed.places[slot] for slot in call.outputs]
    assert len(set(taken)) == 3
    assert set(taken) <= {laid.placed.places[slot] for slot in call.inputs}


def test_values_of_another_size_do_not_take_over() -> None:
    graph = Graph()
    x = placeholder(graph)
    y = ops.slice(graph, x, (0,), (4,), name="y")
    assert Laid(graph, [y], greedy("slice")).at("y") != Laid(graph, [y]).fed()


def test_a_variable_s_memory_is_not_given_away() -> None:
    graph = Graph()
    y = ops.neg(graph, variable(graph), name="n")
    assert Laid(graph, [y], greedy("neg")).at("n").variable is None


def test_scratch_memory_is_nobody_else_s_during_the_call_and_anybody_s_after_it() -> None:
    graph = Graph()
    x = placeholder(graph)
    y = ops.exp(graph, ops.neg(graph, x, name="n"), name="e")
    laid = Laid(graph, [y], greedy("neg", scratch_bytes=100), greedy("exp", (), scratch_bytes=1))
    neg, exp = laid.placed.instructions
    assert (neg.scratch, exp.scratch) == (LINE, 2 * LINE)
    assert (laid.at("n").offset, laid.at("e").offset, laid.placed.arena_bytes) == (0, LINE, 3 * LINE)


def test_values_without_elements_take_no_memory() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (0, 3), "float64", name="x")
    assert Laid(graph, [ops.neg(graph, x), x], greedy("neg")).placed.arena_bytes == 0


def test_a_value_goes_to_the_smallest_gap_that_holds_it_or_behind_all_others() -> None:
    graph = Graph()
    sizes = {"a": 3 * SIZE, "b": SIZE, "c": SIZE, "d": 1}
    filled = {name: ops.fill(graph, 1.0, (size,), "float64", name=name) for name, size in sizes.items()}
    sums = [ops.reduce_sum(graph, filled[name], (0,), name=f"sum_{name}") for name in ("a", "c")]
    one, two = (ops.fill(graph, 1.0, (lines * SIZE,), "float64", name=f"{lines}") for lines in (1, 2))
    laid = Laid(graph, [filled["b"], filled["d"], *sums, one, two])
    lines = {name: laid.at(name).offset // LINE for name in (*sizes, "sum_a", "sum_c", "1", "2")}
    # When "1" comes, the lines 1 and 2 of what was a's are a gap, and so is what was c's.
    assert lines == {"a": 0, "b": 3, "c": 4, "d": 5, "sum_a": 6, "sum_c": 0, "1": 4, "2": 1}
    assert laid.placed.arena_bytes == 7 * LINE


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_neighbours_that_are_free_make_one_gap(order: str) -> None:
    graph = Graph()
    filled = {name: ops.fill(graph, 1.0, (SIZE,), "float64", name=name) for name in "abc"}
    last = ops.fill(graph, 1.0, (SIZE,), "float64", name="last")
    for name in order:
        ops.slice(graph, filled[name], (0,), (0,))  # a reader whose result takes no memory
    laid = Laid(graph, [last, ops.fill(graph, 1.0, (3 * SIZE,), "float64", name="large")])
    assert (laid.at("large").offset, laid.placed.arena_bytes) == (0, 4 * LINE)


def test_a_gap_at_the_end_is_the_beginning_of_what_is_larger() -> None:
    graph = Graph()
    x = placeholder(graph)
    ops.neg(graph, x)
    laid = Laid(graph, [x, ops.fill(graph, 1.0, (3 * SIZE,), "float64", name="large")])
    assert (laid.at("large").offset, laid.placed.arena_bytes) == (LINE, 4 * LINE)
