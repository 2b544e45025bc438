"""What nobody needs is left out; what acts on the world is needed."""

from __future__ import annotations

from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.passes.dead_code import remove_dead_code
from runner.engine.passes.rewriting import Roots
from runner.engine.verify import verify

THERE = "/job:worker/task:1/device:cpu:0"


def test_only_what_leads_to_a_fetch_a_target_or_an_effect_is_kept() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (2,), "float32", name="x")
    ops.placeholder(graph, (2,), "float32", name="unread")
    fetched = ops.exp(graph, ops.neg(graph, x, name="neg"), name="fetched")
    ops.tanh(graph, fetched, name="dead_end")
    ops.abs(graph, x, name="target")
    awaited = ops.sqrt(graph, x, name="awaited")
    variable = ops.variable(graph, (2,), "float32", name="variable")
    with graph.control_dependencies([awaited.node]):
        ops.assign(graph, variable, ops.square(graph, x, name="new"), name="assign")
    ops.send(graph, x, key="k", destination=THERE, name="send")
    ops.recv(graph, key="l", source=THERE, shape=(), dtype="float32", name="recv")
    roots = Roots.of([fetched], ["target"])
    result, moved = remove_dead_code(graph, roots)
    verify(result)
    assert moved == {}
    kept = ["x", "neg", "fetched", "target", "awaited", "variable", "new", "assign", "send", "recv"]
    assert list(result.nodes) == kept
    assert remove_dead_code(result, roots)[0].nodes == result.nodes


def test_a_partner_is_no_reason_to_run_a_node() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (2,), "float32", name="x")
    ops.neg(graph, x, name="partner")
    y = graph.add("exp", [x], name="y", colocate_with=["partner", "x"])[0]
    result, _ = remove_dead_code(graph, Roots.of([y]))
    assert list(result.nodes) == ["x", "y"]
    assert result.nodes["y"].colocate_with == ("x",)
