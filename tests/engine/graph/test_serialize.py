"""Graphs as documents: a round trip loses nothing, and a graph that breaks the rules of its ops is refused."""

import itertools
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.compile.compile import compile_signature
from runner.engine.graph import Graph, local_cluster
from runner.engine.graph.serialize import from_document, to_document
from runner.engine.graph.verify import VerificationError, verify
from runner.kernels.registry import Registry
from runner.optimizers import Momentum
from runner.strategies import SyncData
from tests import op_cases
from tests.engine.compile.passes.graph_text import Text
from tests.engine.compile.plain_data import EXTREMES, mutated, places, put, values
from tests.engine.compile.verified_parts import verify_partition
from tests.strategies.networks import NETWORKS, workload_of


def through_the_wire(document: object) -> Any:
    return msgpack.unpackb(msgpack.packb(document))


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_training_graph_is_built_equally_and_equal_after_a_round_trip(network: str) -> None:
    graph, again = (
        SyncData(workers=3).build(workload_of(NETWORKS[network], Momentum(), batch_size=7)).graph for _ in range(2)
    )
    received = from_document(through_the_wire(to_document(graph)))
    assert list(received.nodes.items()) == list(graph.nodes.items()) == list(again.nodes.items())


def test_every_op_is_equal_after_a_round_trip() -> None:
    for op, cases in op_cases.CASES.items():
        for case in cases:
            graph, _, _ = case.build(op)
            assert from_document(through_the_wire(to_document(graph))).nodes == graph.nodes


def small_graph() -> Graph:
    """Return a graph that uses every field of a node."""
    text = """x = input(2, 3); w = weights(3, 2, on='here', layer='fc1')
    y = matmul(x, w, on='here', layer='fc1', recomputed=True, after='x'); double = add(w, w, on='here', backward=True)
    grow = assign(w, double, on='here', beside='w'); total = reduce_sum(y, axes=(0, 1), on='here')"""
    return Text.parse(text, "float64").graph


def place_of(field: str, node: str = "y") -> tuple[Any, ...]:
    return (list(small_graph().nodes).index(node), field)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((), {}, "graph document: {}, expected a list of at most 1000000"),
        ((0,), [], r"graph document\[0\]: \[\], expected a map"),
        (place_of("comment"), "", r"graph document\[2\]: unknown \['comment'\]"),
        (place_of("op"), "run_shell", "node 2: unknown op 'run_shell'; expected one of abs"),
        (place_of("op"), 3, r"graph document\[2\]\.op: 3, expected text"),
        (place_of("name"), "x", "node 2: node 'x' is already in the graph"),
        (place_of("name", "total"), "a:0", "node name 'a:0': expected letters"),
        (place_of("inputs"), ["x:0", "total:0"], "node 'y' refers to 'total', which is not in the graph yet"),
        (place_of("inputs"), ["x:0", "y:0"], "node 'y' refers to 'y', which is not in the graph yet"),
        (place_of("inputs"), ["x:0", "w:1"], "node 'y': tensor w:1: node 'w' .* has 1 outputs"),
        (place_of("inputs"), ["x", "w:0"], "tensor reference 'x': expected 'node:port'"),
        (place_of("inputs"), ["x:²", "w:0"], "tensor reference 'x:²': expected 'node:port'"),
        (place_of("inputs"), ["x:00", "w:0"], r"\[2\]\.inputs\[0\]: tensor reference 'x:00', expected x:0"),
        (place_of("inputs"), ["x:0"], "node 'y': op 'matmul': expected 2 inputs, got 1"),
        (place_of("attributes"), {"transpose_a": False}, "unknown attributes .*, missing .*'transpose_b'"),
        ((*place_of("attributes"), "transpose_a"), 0, "attribute transpose_a=0: expected a value of kind 'bool'"),
        ((*place_of("attributes"), "key"), "k", r"unknown attributes \['key'\]"),
        ((*place_of("attributes", "w"), "shape"), [3, 2.0], ": expected a value of kind 'ints'"),
        ((*place_of("attributes", "w"), "dtype"), "object", ": expected a value of kind 'dtype'"),
        ((*place_of("outputs"), 0, "shape"), [2, 3], r"has outputs .*float64\[2,3\].* infers .*float64\[2,2\]"),
        ((*place_of("outputs"), 0, "dtype"), "float32", "node 'y' has outputs"),
        ((*place_of("outputs"), 0, "dtype"), "object", "expected one of float32, float64"),
        (place_of("outputs"), [], "node 'y' has outputs"),
        ((*place_of("outputs"), 0, "shape"), [2, -2], r"outputs\[0\]\.shape\[1\]: -2, expected a whole number from 0"),
        (place_of("outputs"), [[[2, 2]]], r"outputs\[0\]: .* expected a map"),
        (place_of("device"), "gpu", "node 'y': device 'gpu': expected '/job:NAME"),
        (place_of("control_inputs"), ["total"], "node 'y' refers to 'total'"),
        (place_of("colocate_with", "grow"), ["ghost"], "node 'grow' refers to 'ghost'"),
        (place_of("colocate_with", "grow"), "w", "colocate_with: 'w', expected a list"),
        (place_of("layer"), {"name": "fc1"}, r"layer: missing \['kind', 'recomputed'\]"),
        (place_of("backward"), 1, r"\[2\]\.backward: 1, expected true or false"),
        (place_of("inputs", "grow"), ["y:0", "double:0"], "expected a value like the variable"),
    ],
)
def test_malformed_document_is_refused_with_the_node_and_the_expectation(
    path: tuple[Any, ...], value: object, message: str
) -> None:
    document = to_document(small_graph())
    assert from_document(document).nodes == small_graph().nodes
    with pytest.raises(VerificationError, match=message):
        from_document(put(document, path, value) if path else value)


def test_assign_to_a_node_that_is_not_a_variable_is_refused() -> None:
    graph = Text.parse("x = input(2); n = neg(x); set = assign(x, n)").graph
    with pytest.raises(VerificationError, match="node 'set' assigns to x:0, which is not a variable"):
        from_document(to_document(graph))


def test_true_is_refused_as_an_integer() -> None:
    document = to_document(Text.parse("x = input(2, 2); y = concat(x, x, axis=1)").graph)
    with pytest.raises(VerificationError, match="attribute axis=True: expected a value of kind 'int'"):
        from_document(put(document, (1, "attributes", "axis"), True))


def documents() -> list[Any]:
    """Return one document for each sample of every op, and one document that uses every field of a node."""
    graphs = [case.build(op)[0] for op, cases in op_cases.CASES.items() for case in cases]
    return [to_document(graph) for graph in (small_graph(), *graphs)]


DOCUMENTS = documents()


@pytest.mark.parametrize(
    "document", {document[-1]["op"]: document for document in DOCUMENTS}.values(), ids=lambda d: d[-1]["op"]
)
def test_extreme_attributes_are_refused_or_read_exactly(document: Any) -> None:
    attributes = [path for path in places(document) if "attributes" in path[:-1]]
    for path, value in itertools.product(attributes, EXTREMES):
        expect_refused_or_exact(put(document, path, value))


def expect_refused_or_exact(document: Any) -> None:
    try:
        graph = from_document(document)
    except VerificationError:
        return
    assert to_document(graph) == document


@settings(max_examples=300)
@given(st.sampled_from(DOCUMENTS).flatmap(mutated))
def test_mutated_document_is_refused_or_read_exactly(document: Any) -> None:
    expect_refused_or_exact(document)


@settings(max_examples=100)
@given(values)
def test_arbitrary_data_raises_only_the_verification_error(document: object) -> None:
    with pytest.raises(VerificationError):
        from_document([document])


def changed(graph: Graph, name: str, /, **fields: Any) -> Graph:
    """Return the graph with some fields of one node replaced, without checks."""
    return Graph({key: replace(node, **fields) if key == name else node for key, node in graph.nodes.items()})


def refused(graph: Graph, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(graph)


def test_graph_in_memory_is_refused_with_the_name_of_the_node() -> None:
    """Each graph, built without checks, has a wrong name, order or reference, or attributes in non-canonical form."""
    graph = small_graph()
    verify(graph)
    refused(changed(graph, "y", name="q"), "node 'q' is stored under the name 'y'")
    refused(
        Graph({name: graph.nodes[name] for name in ("w", "y", "x")}), "node 'y' depends on 'x', which does not precede"
    )
    refused(changed(graph, "y", control_inputs=("total",)), "node 'y' depends on 'total', which does not precede it")
    refused(changed(graph, "y", colocate_with=("ghost",)), "node 'y' is colocated with 'ghost', which is not in the")
    axes = {"axes": [0, 1], "keepdims": False}
    refused(changed(graph, "total", attributes=axes), r"node 'total': .*\[0, 1\].* canonical form")
    refused(
        changed(graph, "total", attributes={"axes": (2,), "keepdims": False}), "'reduce_sum': expected increasing axes"
    )
    wide = Text.parse("x = input(1); b = broadcast_to(x, shape=(2,))").graph
    refused(changed(wide, "b", attributes={"shape": (-1,)}), r"node 'b': .*shape \(-1,\)")


def test_every_pass_over_a_training_graph_gives_legal_graphs(registry: Registry) -> None:
    program = SyncData(workers=3).build(workload_of(NETWORKS["batch_normalised"], Momentum(), batch_size=7))

    def observe(name: str, result: Graph) -> None:
        verify(result)

    for client in program.clients.values():
        compiled = compile_signature(program.graph, client.signature, local_cluster(3), registry, observe)
        verify_partition({device: part.graph for device, part in compiled.parts.items()})
        for part in compiled.parts.values():
            assert from_document(through_the_wire(to_document(part.graph))).nodes == part.graph.nodes
