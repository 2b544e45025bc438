"""Seconds of nodes as an earlier run measured them, in the place of estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.engine.compile import compile_signature
from runner.engine.cost import RESIDENT, Seconds, node_seconds
from runner.engine.device import Cluster, Device
from runner.engine.graph import Graph, Node
from runner.engine.program import Program
from runner.kernels.registry import Registry

_LEAST_KNOWN = 0.75
"""A run on several devices joins a few nodes otherwise than one on a single device; another network has other names."""


def measured_seconds(measured: Mapping[str, float], program: Program, cluster: Cluster, registry: Registry) -> Seconds:
    """Return what nodes take by a record: node name -> seconds, of the training step of the same network and parts.

    A record lacks what the passes joined or took out, transfers, and nodes of other strategies. Those cost what the
    formulas say, times the quotient of measured to estimated seconds of all nodes in the record. Raises
    ValueError where the record lacks more than a quarter of the nodes that one device would compute.
    """
    device = cluster.devices[0]
    graph = _as_on_one_device(program, cluster, registry)
    computed = [node for node in graph if node.op not in RESIDENT]
    known = [node for node in computed if node.name in measured]
    if len(known) < _LEAST_KNOWN * len(computed):
        raise ValueError(f"it knows {len(known)} of {len(computed)} nodes of a step")
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
