"""Reference execution of a step in any order that a graph's edges allow; assignments overwrite arrays in place."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.compile.passes.rewriting import ALIASES
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Tensor
from tests.oracles import run_node

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
