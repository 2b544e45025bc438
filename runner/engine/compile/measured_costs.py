"""Durations of nodes that an earlier run measured, instead of estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.engine.compile.compile import compile_signature
from runner.engine.compile.cost import RESIDENT, Seconds, node_seconds
from runner.engine.compile.program import Program
from runner.engine.graph.device import Cluster, Device
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.kernels.registry import Registry

_LEAST_KNOWN = 0.75
"""Least part of the nodes that a record must know. A run on several devices fuses a few nodes otherwise than a run on
one device; another network has other names."""


def measured_seconds(measured: Mapping[str, float], program: Program, cluster: Cluster, registry: Registry) -> Seconds:
    """Return the durations by a record of a training step of the same network in the same parts.

    measured: node name -> seconds. The record lacks fused nodes, transfers, and nodes of other strategies. Their
    duration is the estimate, times the ratio of measured to estimated seconds of all nodes in the record. Raises
    ValueError if the record lacks more than a quarter of the nodes that one device would compute.
    """
    device = cluster.devices[0]
    graph = _as_on_one_device(program, cluster, registry)
    computed = [node for node in graph if node.op not in RESIDENT]
    known = [node for node in computed if node.name in measured]
    if len(known) < _LEAST_KNOWN * len(computed):
        raise ValueError(f"it knows {len(known)} of {len(computed)} nodes of a step; expected at least 75 %")
    estimated = sum(node_seconds(graph, node, device) for node in known)
    scale = sum(measured[node.name] for node in known) / estimated

    def seconds(graph: Graph, node: Node, device: Device) -> float:
        found = measured.get(node.name) if node.op not in RESIDENT else 0.0
        return scale * node_seconds(graph, node, device) if found is None else found

    return seconds


def _as_on_one_device(program: Program, cluster: Cluster, registry: Registry) -> Graph:
    """Return the training step as one device would run it, with the node names of a record."""
    alone = Graph()
    for node in program.graph:
        alone.insert(replace(node, device=cluster.devices[0].name, colocate_with=()))
    compiled = compile_signature(alone, program.clients["train"].signature, cluster, registry)
    return compiled.parts[cluster.devices[0].name].graph
