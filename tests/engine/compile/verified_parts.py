"""Checks of a graph that is split into parts, one for each device."""

from collections import defaultdict
from collections.abc import Iterable

from runner.engine.graph import Graph, Node, TensorSpec
from runner.engine.graph.verify import verify


def verify_partition(parts: dict[str, Graph]) -> None:
    """Check that parts are legal, nodes are on their devices, and each send has one receive with an equal spec."""
    sends: dict[tuple[str, str, str], list[TensorSpec]] = defaultdict(list)
    receives: dict[tuple[str, str, str], list[TensorSpec]] = defaultdict(list)
    for device, part in parts.items():
        verify(part)
        for node in part:
            assert node.device == device, node
            if node.op == "send":
                sends[node.attributes["key"], device, node.attributes["destination"]] += part.input_specs(node)
            if node.op == "recv":
                receives[node.attributes["key"], node.attributes["source"], device] += node.outputs
    for transfer in sends.keys() | receives.keys():
        assert len(sends[transfer]) == 1, transfer
        assert sends[transfer] == receives[transfer], transfer


def expect_all_end(parts: Iterable[Graph]) -> None:
    """Simulate the devices and expect that all finish. A sum waits for all devices and a receive for its send."""
    left = [list(part) for part in parts]
    sent: set[str] = set()
    while any(left):
        begun = sum(_run_until_it_waits(nodes, sent) for nodes in left)
        waiting = {nodes[0].attributes.get("group") if nodes else None for nodes in left}
        if len(waiting) == 1 and None not in waiting:
            for nodes in left:
                nodes.pop(0)
        else:
            assert begun, "each device waits for another"


def _run_until_it_waits(nodes: list[Node], sent: set[str]) -> int:
    """Remove the nodes that a device runs before it has to wait, and return their number."""
    count = 0
    while nodes and nodes[0].op != "collective_sum" and (nodes[0].op != "recv" or nodes[0].attributes["key"] in sent):
        node = nodes.pop(0)
        count += 1
        if node.op == "send":
            sent.add(node.attributes["key"])
    return count
