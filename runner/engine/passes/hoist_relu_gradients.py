"""The gradient of a ReLU before a max pooling is taken of what was pooled, which is smaller, not of what went in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runner.engine.graph import Graph, Node
from runner.engine.passes.rewriting import Moved, Rewrite, Roots, Uses, rewired
from runner.engine.tensor import Tensor

_GEOMETRY = ("window", "strides", "padding")


def hoist_relu_gradients(graph: Graph, roots: Roots) -> Rewrite:
    """Return the graph with relu_gradients before the max_pool_gradients they read, and where their results went.

    relu_gradient(max_pool_gradient(dy, argmax), y) becomes max_pool_gradient(relu_gradient(dy, pooled), argmax) where
    pooled and argmax are of the max_pool of y: a window takes one y and hands dy back to it alone, so that y > 0
    there if and only if pooled > 0. Through several poolings in a row it goes all the way. Both nodes keep their
    names and stand where the max_pool_gradient stood; that one's output is now what the relu_gradient's was.

    No bit changes, signs of zeros included: the same dy are added up in the same order, with zeros in between, which
    change no sum that began at +0. Only where y holds NaN may other places of a window get its dy: what argmax points
    at is not what was pooled then.
    """
    uses = Uses(graph, roots)
    hoisted: dict[str, Node] = {}
    moved: Moved = {}
    for node in graph:
        passed = list(_pooling_gradients_before(uses, node))
        if passed:
            (nearest, _), (farthest, pooled) = passed[0], passed[-1]
            inputs = (farthest.inputs[0], pooled)
            hoisted[farthest.name] = replace(node, inputs=inputs, outputs=(graph.spec(pooled),))
            moved[node[0]] = nearest[0]
    return _exchange(graph, hoisted, moved), moved


def _pooling_gradients_before(uses: Uses, gate: Node) -> Iterator[tuple[Node, Tensor]]:
    """The max_pool_gradients that a relu_gradient can stand before, from the last to the first, each with its pooled.

    What waits for the relu_gradient, or it for, was told when: it stays where it is.
    """
    if gate.op != "relu_gradient" or gate.name in uses.pinned or gate.control_inputs or gate.colocate_with:
        return
    reader, (dx, y) = gate, gate.inputs
    while True:
        gradient = uses.graph.nodes[dx.node]
        pooled = _pooled(uses.graph, gradient, y)
        if pooled is None or uses.sole_reader(gradient) is not reader:
            return
        yield gradient, pooled
        reader, dx, y = gradient, gradient.inputs[0], pooled


def _pooled(graph: Graph, gradient: Node, y: Tensor) -> Tensor | None:
    """The largest of each window of y, where ``gradient`` is the gradient of having taken them, on its device."""
    if gradient.op != "max_pool_gradient":
        return None
    pooling = graph.nodes[gradient.inputs[1].node]
    if pooling.op != "max_pool" or pooling.inputs != (y,) or pooling.device != gradient.device:
        return None
    alike = all(pooling.attributes[name] == gradient.attributes[name] for name in _GEOMETRY)
    return pooling[0] if alike else None


def _exchange(graph: Graph, hoisted: Mapping[str, Node], moved: Moved) -> Graph:
    """The graph with relu_gradients before the nodes they are hoisted over; all others read moved tensors anew."""
    result = Graph()
    for old in graph:
        if old.name in hoisted:
            gate = result.insert(rewired(hoisted[old.name], moved))
            result.insert(replace(old, inputs=(gate[0], old.inputs[1])))
        elif old[0] not in moved:
            result.insert(rewired(old, moved))
    return result
