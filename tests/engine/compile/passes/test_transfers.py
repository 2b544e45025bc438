"""Cut edges: one Send and one Recv per tensor and destination, and the same results."""

import numpy as np
from hypothesis import given, settings

from runner.engine.compile.passes.transfers import insert_transfers, transfer_key
from runner.engine.compile.placement import place
from runner.engine.compile.schedule import split, start_times
from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.engine.graph.serialize import verify
from runner.engine.graph.tensor import LayerStamp, Node, Tensor
from runner.kernels.registry import Registry
from tests.engine.compile.verified_parts import verify_partition
from tests.engine.graph.random_graphs import Sample, samples
from tests.engine.running import run_once
from tests.oracles import evaluate

HERE, THERE, ELSEWHERE = (worker_device(k) for k in range(3))


def of_op(graph: Graph, op: str) -> list[Node]:
    return [node for node in graph if node.op == op]


def spread() -> Graph:
    """x on one device, read twice on each of two others and once on its own."""
    graph = Graph()
    with graph.device(HERE), graph.layer(LayerStamp("fc1", "dense")):
        x = ops.placeholder(graph, (2,), "float64", name="x")
        ops.neg(graph, x, name="home")
    for k, device in enumerate((THERE, THERE, ELSEWHERE, ELSEWHERE)):
        with graph.device(device):
            ops.mul(graph, x, x, name=f"reader_{k}")
    return graph


def test_one_pair_per_destination_for_any_number_of_readers() -> None:
    cut = insert_transfers(spread())
    verify(cut)
    assert [node.inputs for node in of_op(cut, "send")] == [(Tensor("x"),)] * 2
    assert [node.device for node in of_op(cut, "send")] == [HERE] * 2
    assert [node.attributes["destination"] for node in of_op(cut, "send")] == [THERE, ELSEWHERE]
    assert [node.device for node in of_op(cut, "recv")] == [THERE, ELSEWHERE]
    arrivals = {node.device: node[0] for node in of_op(cut, "recv")}
    for k in range(4):
        reader = cut.nodes[f"reader_{k}"]
        assert reader.inputs == (arrivals[reader.device],) * 2
    assert cut.nodes["home"].inputs == (Tensor("x"),)


def test_pair_shares_key_spec_and_layer_and_keeps_its_order() -> None:
    cut = insert_transfers(spread())
    for send, recv in zip(of_op(cut, "send"), of_op(cut, "recv"), strict=True):
        assert send.attributes["key"] == recv.attributes["key"] == transfer_key(Tensor("x"), recv.device)
        assert recv.attributes["source"] == HERE
        assert recv.outputs == cut.nodes["x"].outputs
        assert send.layer == recv.layer == LayerStamp("fc1", "dense")
        assert recv.control_inputs == (send.name,)


def test_outputs_of_one_node_are_sent_separately() -> None:
    graph = Graph()
    with graph.device(HERE):
        x = ops.placeholder(graph, (4,), "float64", name="x")
        low, high = ops.split(graph, x, 0, (1, 3), name="parts")
    with graph.device(THERE):
        ops.concat(graph, [high, low], axis=0)
    cut = insert_transfers(graph)
    assert [node.inputs[0] for node in of_op(cut, "send")] == [high, low]
    assert [node.outputs[0].shape for node in of_op(cut, "recv")] == [(3,), (1,)]


def test_graph_on_one_device_does_not_change() -> None:
    graph = Graph()
    with graph.device(HERE):
        x = ops.placeholder(graph, (4,), "float64", name="x")
        with graph.control_dependencies(["x"]):
            ops.neg(graph, x)
    assert insert_transfers(graph).nodes == graph.nodes


def test_control_edge_becomes_one_empty_transfer_per_destination() -> None:
    graph = Graph()
    with graph.device(HERE):
        x = ops.placeholder(graph, (4,), "float64", name="x")
        ops.neg(graph, x, name="first")
    for k, device in enumerate((THERE, THERE, ELSEWHERE, HERE)):
        with graph.device(device), graph.control_dependencies(["first"]):
            ops.fill(graph, 0.0, (), "float64", name=f"late_{k}")
    cut = insert_transfers(graph)
    verify(cut)
    assert cut.nodes["first/done"].control_inputs == ("first",)
    assert [node.inputs[0].node for node in of_op(cut, "send")] == ["first/done"] * 2
    assert [node.outputs[0].nbytes for node in of_op(cut, "recv")] == [0, 0]
    arrivals = {node.device: node.name for node in of_op(cut, "recv")}
    assert cut.nodes["late_0"].control_inputs == cut.nodes["late_1"].control_inputs == (arrivals[THERE],)
    assert cut.nodes["late_2"].control_inputs == (arrivals[ELSEWHERE],)
    assert cut.nodes["late_3"].control_inputs == ("first",)


def test_constant_is_repeated_on_the_device_that_reads_it() -> None:
    graph = Graph()
    with graph.device(HERE):
        half = ops.fill(graph, 0.5, (3,), "float32", name="half")
    with graph.device(THERE):
        for k in range(2):
            ops.neg(graph, half, name=f"negated_{k}")
    cut = insert_transfers(graph)
    verify(cut)
    assert of_op(cut, "send") == []
    ((copied,),) = ({tensor.node for node in of_op(cut, "neg") for tensor in node.inputs},)
    assert (cut.nodes[copied].device, cut.nodes[copied].attributes) == (THERE, graph.nodes["half"].attributes)


@settings(max_examples=60)
@given(sample=samples())
def test_any_graph_is_cut_into_a_legal_partition_that_gives_the_same_bits(sample: Sample, registry: Registry) -> None:
    cluster = local_cluster(sample.devices)
    cut = insert_transfers(place(sample.graph, cluster, lambda node: None))
    verify(cut)
    for node in cut:
        before = [tensor.node for tensor in node.inputs] + list(node.control_inputs)
        if node.op == "recv":
            assert [cut.nodes[name].op for name in before] == ["send"]
        else:
            assert {cut.nodes[name].device for name in before} <= {node.device}
    keys = [(node.inputs[0], node.attributes["destination"]) for node in of_op(cut, "send")]
    assert len(keys) == len(set(keys)) == len(of_op(cut, "recv"))
    verify_partition(split(cut, list(start_times(cut, cluster))))
    expected = evaluate(sample.graph, sample.fetches, sample.feeds)
    came = run_once(sample.graph, registry, sample.fetches, sample.feeds, cluster=cluster)
    for a, b in zip(came, expected, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
