"""Updates in place: in every order that the edges allow, a step reads the values that variables had at its start."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runner.engine.compile.passes.optimize import default_passes, optimize
from runner.engine.compile.passes.order_writes import order_writes
from runner.engine.compile.passes.rewriting import ALIASES, Rewrite, Roots
from runner.engine.graph import Graph, ShapeError, Tensor
from runner.engine.graph.verify import verify
from runner.engine.run.kernel_table import load_kernels
from tests.engine.compile.passes.graph_text import Case, Text, assert_same_bits, assigned_values, check, roots_of
from tests.engine.graph.random_graphs import TrainingSample, training_samples
from tests.oracles import evaluate, run_node

Array = NDArray[Any]


def play(
    graph: Graph, order: Sequence[str], variables: Mapping[str, Array], feeds: Mapping[Tensor, Array]
) -> tuple[dict[str, Array], dict[Tensor, Array]]:
    """Run nodes in the given order; return the final values of the variables and the outputs of all kernels.

    Aliases are views. If only an assign node reads the result of a fused element-wise node, the result is written
    directly to the variable, unless a later node reads the old value of the variable.
    """
    memory = {name: value.copy() for name, value in variables.items()}
    values = dict(feeds)
    computed: dict[Tensor, Array] = {}
    direct = _written_by_their_producers(graph, order)
    for name in order:
        node = graph.nodes[name]
        if node.op == "variable":
            values[node[0]] = memory[name]
        elif node.op in ALIASES:
            values[node[0]] = values[node.inputs[0]].reshape(node.outputs[0].shape)
        elif node.op == "assign":
            memory[node.inputs[0].node][...] = values[node.inputs[1]]
        elif node.op != "placeholder":
            outputs = dict(zip(node.tensors, run_node(graph, node, [values[t] for t in node.inputs]), strict=True))
            computed.update(outputs)
            for tensor, value in outputs.items():
                values[tensor] = value
                if tensor in direct:
                    values[tensor] = memory[direct[tensor]]
                    values[tensor][...] = value
    return memory, computed


def _written_by_their_producers(graph: Graph, order: Sequence[str]) -> dict[Tensor, str]:
    """Return result -> variable for each element-wise result that, in this order, may be written to the variable."""
    position = {name: i for i, name in enumerate(order)}
    source: dict[Tensor, str] = {}
    last_read: dict[str, int] = {}
    for node in graph:
        if node.op == "variable":
            source[node[0]] = node.name
        for tensor in node.inputs[1:] if node.op == "assign" else node.inputs:
            if tensor in source:
                last_read[source[tensor]] = max(last_read.get(source[tensor], 0), position[node.name])
                if node.op in ALIASES:
                    source[node[0]] = source[tensor]
    readers = graph.consumers()
    return {
        node.inputs[1]: node.inputs[0].node
        for node in graph
        if node.op == "assign"
        and graph.nodes[node.inputs[1].node].op in ("elementwise", "matmul_elementwise")
        and len(readers[node.inputs[1]]) == 1
        and last_read.get(node.inputs[0].node, -1) <= position[node.inputs[1].node]
    }


def any_order(graph: Graph, rng: np.random.Generator) -> list[str]:
    """Return a random order of the nodes that the edges allow."""
    missing = {node.name: {*(t.node for t in node.inputs), *node.control_inputs} for node in graph}
    order: list[str] = []
    while missing:
        ready = [name for name, needed in missing.items() if needed.isdisjoint(missing)]
        name = ready[rng.integers(len(ready))]
        del missing[name]
        order.append(name)
    return order


def pass_of(graph: Graph, roots: Roots) -> Rewrite:
    """Run ``order_writes`` as a pass that moves each fetch of an assign node to the assigned value."""
    ordered = order_writes(graph)
    assigned = {node[0]: ordered.nodes[node.name].inputs[1] for node in graph if node.op == "assign"}
    return ordered, {old: new for old, new in assigned.items() if old in roots.fetches}


VARIABLES = "v = weights(2); w = weights(2)"
SWAP = f"{VARIABLES}; write_v = assign(v, w); alias = identity(v); write_w = assign(w, alias)"
NEG_V, NEG_W = (f"elementwise({name}, program='neg 0', outputs=(1,))" for name in "vw")
MOMENTUM = "elementwise(v, g, w, program='mul 0 #0.9; sub 3 1; add 2 4', outputs=(5, 4)"
WAITING = "write = assign(v, u, after='{}')"
CASES = {
    "every reader runs before the assign": Case(
        "new = tanh(v); write = assign(v, new); late = exp(v)",
        "new = tanh(v); late = exp(v); write = assign(v, new, after='new late')",
    ),
    **{
        f"a reader of an alias ({alias}) reads the variable": Case(
            f"view = {alias}; again = identity(view); r = exp(again); new = neg(w); write = assign(v, new)",
            f"view = {alias}; again = identity(view); r = exp(again); new = neg(w)"
            "; write = assign(v, new, after='view again r')",
        )
        for alias in ("reshape(v, shape=(2, 1))", "identity(v)", "stop_gradient(v)")
    },
    "no assign": Case("r = exp(v)"),
    "a reader of an assign reads the assigned value": Case(
        "new = neg(w); write = assign(v, new); r = exp(write); write_w = assign(w, write)",
        "new = neg(w); write = assign(v, new); r = exp(new); write_w = assign(w, new, after='new')",
    ),
    "v <- w, w <- the new v: the value of w is copied": Case(
        "write_v = assign(v, w); write_w = assign(w, write_v)",
        "write_v__copy = convert(w); write_v = assign(v, write_v__copy)"
        "; write_w = assign(w, write_v__copy, after='write_v/copy')",
    ),
    "the name of a copy is already used": Case(
        "write__copy = neg(v); write = assign(v, w)",
        "write__copy = neg(v); write__copy_1 = convert(w); write = assign(v, write__copy_1, after='write/copy')",
    ),
    "a fused update, not its assign, waits for the other readers": Case(
        "u = elementwise(v, program='mul 0 #0.9; add 1 0', outputs=(2,)); write = assign(v, u); r = exp(v)",
        "r = exp(v); u = elementwise(v, program='mul 0 #0.9; add 1 0', outputs=(2,), after='r'); write = assign(v, u)",
    ),
    "momentum is one node that waits for the readers of both variables": Case(
        f"g = tanh(v); n, m = {MOMENTUM}); write_v = assign(v, m); write_w = assign(w, n); r = exp(w)",
        f"g = tanh(v); r = exp(w); n, m = {MOMENTUM}, after='g r'); write_v = assign(v, m); write_w = assign(w, n)",
    ),
    # An update cannot write in place if it is not fused, if it is on another device, if another node reads its value,
    # or if a reader of the variable depends on the update. In these cases, the assign node waits for the readers.
    "another reader of the update": Case(
        f"u = {NEG_V}; o = exp(u); r = add(v, w); {WAITING.format('')}",
        f"u = {NEG_V}; o = exp(u); r = add(v, w); {WAITING.format('u r')}",
    ),
    "a reader that needs the update": Case(
        f"u = {NEG_V}; r = add(v, u); {WAITING.format('')}", f"u = {NEG_V}; r = add(v, u); {WAITING.format('u r')}"
    ),
    "an update that is not fused": Case(
        f"u = neg(v); r = add(v, w); {WAITING.format('')}", f"u = neg(v); r = add(v, w); {WAITING.format('u r')}"
    ),
    "an update on another device": Case(
        f"u = {NEG_V[:-1]}, on='there'); r = add(v, w); {WAITING.format('')}",
        f"u = {NEG_V[:-1]}, on='there'); r = add(v, w); {WAITING.format('u r')}",
    ),
    "of two updates that read each other's variable, one writes later": Case(
        f"from_w = {NEG_W}; write_v = assign(v, from_w); from_v = {NEG_V}; write_w = assign(w, from_v)",
        f"from_v = {NEG_V}; from_w = {NEG_W[:-1]}, after='from_v'); write_v = assign(v, from_w)"
        "; write_w = assign(w, from_v, after='from_w')",
    ),
    "a late reader and only the nodes that it needs move before the assign": Case(
        "new = neg(w); write = assign(v, new); x = exp(w); r = add(x, v); y = exp(w)",
        "new = neg(w); x = exp(w); r = add(x, v); write = assign(v, new, after='r'); y = exp(w)",
    ),
    "control inputs and colocation stay": Case(
        "first = exp(w); new = neg(v); write = assign(v, new, after='first', beside='v')",
        "first = exp(w); new = neg(v); write = assign(v, new, after='first new', beside='v')",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_writes_are_ordered_as_the_table_says(name: str) -> None:
    check(CASES[name], pass_of, VARIABLES)


def test_swap_of_two_variables_needs_two_copies() -> None:
    ordered = order_writes(Text.parse(SWAP, "float64").graph)
    verify(ordered)
    assert [node.name for node in ordered if node.op == "convert"] == ["write_v/copy", "write_w/copy"]
    waits = {name: set(ordered.nodes[name].control_inputs) for name in ("write_v", "write_w")}
    assert waits == {"write_v": {"alias", "write_w/copy"}, "write_w": {"write_v/copy"}}
    memory, _ = play(ordered, list(ordered.nodes), {"v": np.array([1.0, 2.0]), "w": np.array([3.0, 4.0])}, {})
    assert (memory["v"].tolist(), memory["w"].tolist()) == ([3.0, 4.0], [1.0, 2.0])


def test_reader_that_waits_for_the_write_is_refused() -> None:
    text = Text.parse(
        f"""{VARIABLES}; new = neg(w); write = assign(v, new); between = exp(w, after='write'); early = tanh(v)
        r = exp(v, after='between')"""
    )
    with pytest.raises(
        ShapeError,
        match=r"^variable 'v': node 'r' reads its value from the start of the step, but has to run after node "
        r"'write', which replaces it; let 'r' read the output of 'write' for the new value, or remove its "
        r"dependency on 'write'$",
    ):
        order_writes(text.graph)


@settings(max_examples=150)
@given(training_samples(controls=False), st.booleans(), st.integers(0, 99))
def test_every_allowed_order_gives_the_values_of_the_graph(sample: TrainingSample, fuse: bool, seed: int) -> None:
    graph = sample.graph
    if fuse:
        passes = default_passes(load_kernels())
        graph, _ = optimize(graph, roots_of(graph, sample.fetches), passes)
    ordered = order_writes(graph)
    verify(ordered)
    variables = {t.node: value for t, value in sample.feeds.items() if sample.graph.nodes[t.node].op == "variable"}
    placeholders = {t: value for t, value in sample.feeds.items() if t.node not in variables}
    with np.errstate(all="ignore"):
        memory, computed = play(ordered, any_order(ordered, np.random.default_rng(seed)), variables, placeholders)
        known = [tensor for tensor in computed if tensor.node in graph]
        for tensor, expected in zip(known, evaluate(graph, known, sample.feeds), strict=True):
            assert_same_bits(computed[tensor], expected)
        for name, tensor in assigned_values(graph).items():
            (expected,) = evaluate(graph, [tensor], sample.feeds)
            assert_same_bits(memory[graph.nodes[name].inputs[0].node], expected)


@settings(max_examples=60)
@given(training_samples())
def test_result_is_a_legal_graph_or_an_error_that_names_the_variable(sample: TrainingSample) -> None:
    """The passes that run before do not make a legal order of reads and writes illegal."""
    refusal = ""
    try:
        verify(order_writes(sample.graph))
    except ShapeError as error:
        refusal = str(error)
    if refusal:
        assert "reads its value from the start of the step" in refusal
        assert any(node.control_inputs for node in sample.graph)
    else:
        passes = default_passes(load_kernels())
        verify(order_writes(optimize(sample.graph, roots_of(sample.graph, sample.fetches), passes)[0]))
