"""The baseline of overlapped exchange: no gradient leaves a worker before all gradients of the step exist there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.engine.graph import ops
from runner.engine.graph.tensor import Tensor
from runner.strategies.replica import Gradients, Replica


def held_back(replicas: Sequence[Replica], computed: Sequence[Gradients]) -> list[Gradients]:
    """What the replicas computed, with all that is summed over the workers held back by control edges.

    What is to travel is read through nodes that wait for every other one of the same worker. No value changes, and no
    byte more is sent; losses, accuracies and statistics that are no parts of a sum travel as before.
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
