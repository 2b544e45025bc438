"""Small updates of variables go to the end of the step, where a card makes a few launches of them.

On a card a launch takes microseconds however little it does, and a network has hundreds of small variables. Next to
each other, updates of one kind are one launch; apart, as gradients come, each is one of its own. It costs the memory of
small gradients until then.
"""

from __future__ import annotations

from collections import defaultdict

from runner.engine.graph import Graph, Node
from runner.engine.passes.order_writes import UPDATES
from runner.engine.passes.rewriting import needed_by

SMALL_BYTES = 1 << 20
"""An update of more than this fills a card by itself."""


def small_updates_last(part: Graph, small_bytes: int = SMALL_BYTES) -> Graph:
    """Return the graph of one device with assigns of small values, and what computes only these, after all else.

    Both keep their order otherwise, so that whatever stood before a write by the graph's edges still does.
    """
    needed: dict[str, list[str]] = defaultdict(list)
    for node in part:
        for name in needed_by(node):
            needed[name].append(node.name)
    late: set[str] = set()
    for node in reversed(list(part)):
        only_for_late = late.issuperset(needed[node.name]) and (node.op == "assign" or needed[node.name])
        if only_for_late and _is_small_update(part, node, small_bytes):
            late.add(node.name)
    result = Graph()
    for is_late in (False, True):
        for node in part:
            if (node.name in late) is is_late:
                result.insert(node)
    return result


def _is_small_update(part: Graph, node: Node, small_bytes: int) -> bool:
    if node.op == "assign":
        return part.spec(node.inputs[1]).nbytes <= small_bytes
    return node.op in UPDATES and all(spec.nbytes <= small_bytes for spec in node.outputs)
