"""Seconds of nodes as an earlier run measured them, in the place of estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.engine.compile import compile_signature
from runner.engine.cost import RESIDENT, Seconds, node_seconds
from runner.engine.device import Cluster, Device
from runner.engine.graph import Graph, Node
from runner.engine.passes.layer_groups import home_layers
from runner.engine.program import Program
from runner.kernels.registry import Registry


def measured_seconds(measured: Mapping[str, float], program: Program, cluster: Cluster, registry: Registry) -> Seconds:
    """Return what nodes take by a record: node name -> seconds, of the training step of the same network and parts.

    A record lacks what the passes joined or took out, transfers, and nodes of other strategies. Those cost what the
    formulas say, times the quotient of measured to estimated seconds of all nodes in the record. Raises
    ValueError naming the layers with variables of which the record knows no node.
    """
    device = cluster.devices[0]
    graph = _as_on_one_device(program, cluster, registry)
    known = [node for node in graph if node.name in measured and node.op not in RESIDENT]
    _expect_all_layers(graph, {node.name for node in known})
    estimated = sum(node_seconds(graph, node, device) for node in known)
    scale = sum(measured[node.name] for node in known) / estimated

    def seconds(graph: Graph, node: Node, device: Device) -> float:
        found = measured.get(node.name) if node.op not in RESIDENT else 0.0
        return scale * node_seconds(graph, node, device) if found is None else found

    return seconds


def _as_on_one_device(program: Program, cluster: Cluster, registry: Registry) -> Graph:
    """The training step as one device would run it: the passes' names are those of a record."""
    alone = Graph()
    for node in program.graph:
        alone.insert(replace(node, device=cluster.devices[0].name, colocate_with=()))
    compiled = compile_signature(alone, program.clients["train"].signature, cluster, registry)
    return compiled.parts[cluster.devices[0].name].graph


def _expect_all_layers(graph: Graph, known: set[str]) -> None:
    homes = home_layers(graph)
    variables = {node.name for node in graph if node.op == "variable"}
    wanted = {homes[node.name] for node in graph for tensor in node.inputs if tensor.node in variables}
    lacking = wanted - {homes[name] for name in known if name in homes}
    if lacking:
        raise ValueError(f"no node of the layers {', '.join(sorted(lacking))} is in the record")
