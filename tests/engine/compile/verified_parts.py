"""Checks of a graph that is split into parts, one for each device."""

from collections import defaultdict

from runner.engine.graph import Graph, TensorSpec
from runner.engine.graph.verify import VerificationError, verify


def verify_partition(parts: dict[str, Graph]) -> None:
    """Check that parts are legal, nodes are on their devices, and each send has one receive with an equal spec."""
    sends: dict[tuple[str, str, str], list[TensorSpec]] = defaultdict(list)
    receives: dict[tuple[str, str, str], list[TensorSpec]] = defaultdict(list)
    for device, part in parts.items():
        verify(part)
        for node in part:
            if node.device != device:
                raise VerificationError(f"node {node.name!r} of {node.device!r} is in the part of {device!r}")
            if node.op == "send":
                sends[node.attributes["key"], device, node.attributes["destination"]] += part.input_specs(node)
            if node.op == "recv":
                receives[node.attributes["key"], node.attributes["source"], device] += node.outputs
    for transfer in sorted(sends.keys() | receives.keys()):
        key, source, destination = transfer
        sent, received = sends[transfer], receives[transfer]
        if len(sent) != 1 or len(received) != 1:
            raise VerificationError(
                f"transfer {key!r} from {source} to {destination} has {len(sent)} sends and {len(received)} "
                f"receives; expected one of each"
            )
        if sent != received:
            raise VerificationError(
                f"transfer {key!r} from {source} to {destination}: {sent[0]} is sent, {received[0]} is expected"
            )
