"""Updates in place: in every order that the edges allow, a step reads the values that variables had at its start."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.compile.passes.optimize import default_passes, optimize
from runner.engine.compile.passes.order_writes import order_writes
from runner.engine.compile.passes.rewriting import Rewrite, Roots
from runner.engine.graph import Graph, ShapeError, Tensor
from runner.engine.graph.verify import verify
from runner.engine.run.kernel_table import load_kernels
from tests.engine.compile.passes.graph_text import Case, Text, assert_same_bits, assigned_values, check, roots_of
from tests.engine.graph.random_graphs import Sample, training_samples
from tests.engine.run.fake_kernels import random_registry, reference_registry
from tests.engine.running import Bench
from tests.oracles import evaluate


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
    bench = Bench(ordered, reference_registry())
    bench.put("v", np.array([1.0, 2.0]))
    bench.put("w", np.array([3.0, 4.0]))
    bench.run()
    assert (bench.value("v").tolist(), bench.value("w").tolist()) == ([3.0, 4.0], [1.0, 2.0])


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
def test_every_allowed_order_gives_the_values_of_the_graph(sample: Sample, fuse: bool, seed: int) -> None:
    """The kernels overwrite all memory that they may overwrite, and compute updates in the memory of variables."""
    graph = sample.graph
    if fuse:
        graph, _ = optimize(graph, roots_of(graph, sample.fetches), default_passes(load_kernels()))
    ordered = order_writes(graph)
    verify(ordered)
    order = any_order(ordered, np.random.default_rng(seed))
    computed = [tensor for node in graph if node.op not in ("placeholder", "variable") for tensor in node.tensors]
    bench = Bench(Graph.of(map(ordered.nodes.__getitem__, order)), random_registry(seed), computed)
    ran = [instruction.node for instruction in bench.plan.instructions if instruction.node in ordered]
    assert ran == sorted(ran, key=order.index)
    for name in bench.plan.variables:
        bench.put(name, sample.feeds[Tensor(name)])
    found = list(bench.run(sample.feeds).items())
    for name, tensor in assigned_values(graph).items():
        found.append((tensor, bench.value(graph.nodes[name].inputs[0].node)))
    with np.errstate(all="ignore"):
        expected = evaluate(graph, [tensor for tensor, _ in found], sample.feeds)
    for (_, value), reference in zip(found, expected, strict=True):
        assert_same_bits(value, reference)


@settings(max_examples=60)
@given(training_samples())
def test_result_is_a_legal_graph_or_an_error_that_names_the_variable(sample: Sample) -> None:
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
