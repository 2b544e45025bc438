"""The baseline of overlapped exchange: no gradient leaves a worker before all gradients of the step exist there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.engine.graph import ops
from runner.engine.graph.tensor import Tensor
from runner.strategies.replica import Gradients, Replica


def held_back(replicas: Sequence[Replica], computed: Sequence[Gradients]) -> list[Gradients]:
    """Return the gradients and statistics of the replicas, held back by control edges until all of a worker exist.

    Each is read through a node that waits for all others of the same worker. Values and bytes on the wire do not
    change. Losses, accuracies and statistics that are not summed are not held back.
    """
    return [_held(*each) for each in zip(replicas, computed, strict=True)]


def _held(replica: Replica, computed: Gradients) -> Gradients:
    graph = replica.graph
    parts = [
        *(gradient for _, gradient in computed.gradients),
        *(each.batch_value for each in computed.state_updates),
    ]
    with graph.absolute_scope(f"{replica.prefix}/train/held"), graph.device(replica.device):
        there = [ops.identity(graph, part, name="there") for part in parts]
        with graph.control_dependencies(tensor.node for tensor in there):
            held = [ops.identity(graph, tensor, name="held") for tensor in there]
    return _with_parts(computed, held)


def _with_parts(computed: Gradients, parts: Sequence[Tensor]) -> Gradients:
    count = len(computed.gradients)
    pairs = [(variable, part) for (variable, _), part in zip(computed.gradients, parts[:count], strict=True)]
    updates = [
        replace(each, batch_value=part) for each, part in zip(computed.state_updates, parts[count:], strict=True)
    ]
    return replace(computed, gradients=pairs, state_updates=updates)
