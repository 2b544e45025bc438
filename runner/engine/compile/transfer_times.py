"""Estimates, without a run, of the transfers in a step and of the part of their time that overlaps with compute."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from runner.engine.compile.compile import Compiled
from runner.engine.compile.cost import node_seconds
from runner.engine.compile.passes.transfers import TRANSFERS
from runner.engine.graph import Cluster, Graph


@dataclass(frozen=True)
class TimedTransfer:
    """One transfer of a step.

    layer: name of the layer of the Send, or None. nbytes: bytes of the tensor. seconds: estimated time on the link.
    hidden_s: seconds, at most ``seconds``, in which the destination computes between the end of the Send and the start
    of the first node that needs the tensor. The start times come from the simulation that chose the order of nodes.
    """

    source: str
    destination: str
    layer: str | None
    nbytes: int
    seconds: float
    hidden_s: float


def transfers(compiled: Compiled, cluster: Cluster) -> list[TimedTransfer]:
    """Return the transfers of a compiled signature, in the order in which the simulation starts the Sends.

    ``seconds`` assumes a free link; in the simulation, the link may have to carry other tensors first. The same compute
    may hide several transfers.
    """
    compute = {device: _Compute(part.graph, compiled.starts, cluster) for device, part in compiled.parts.items()}
    needed = _first_needs(compiled)
    sends = [(part.graph, node) for part in compiled.parts.values() for node in part.graph if node.op == "send"]
    found = []
    for graph, send in sorted(sends, key=lambda each: compiled.starts[each[1].name]):
        (spec,) = graph.input_specs(send)
        destination = send.attributes["destination"]
        seconds = cluster.transfer_s(spec.nbytes)
        sent = compiled.starts[send.name] + node_seconds(graph, send, cluster.device(send.device))
        covered = compute[destination].between(sent, needed[send.attributes["key"]])
        layer = send.layer.name if send.layer else None
        found.append(TimedTransfer(send.device, destination, layer, spec.nbytes, seconds, min(seconds, covered)))
    return found


def _first_needs(compiled: Compiled) -> dict[str, float]:
    """Return, by transfer key, the start of the first node that reads the tensor or waits for its Recv."""
    needs: dict[str, float] = {}
    for part in compiled.parts.values():
        keys = {node.name: node.attributes["key"] for node in part.graph if node.op == "recv"}
        for node in part.graph:
            for name in node.needed:
                if name in keys:
                    start = compiled.starts[node.name]
                    needs[keys[name]] = min(start, needs.get(keys[name], start))
    return needs


class _Compute:
    """The intervals in which one device computes."""

    def __init__(self, part: Graph, starts: Mapping[str, float], cluster: Cluster) -> None:
        nodes = sorted((node for node in part if node.op not in TRANSFERS), key=lambda node: starts[node.name])
        self._starts = [starts[node.name] for node in nodes]
        self._seconds = [node_seconds(part, node, cluster.device(node.device)) for node in nodes]
        self._before = list(accumulate(self._seconds, initial=0.0))

    def between(self, begin: float, end: float) -> float:
        """Return the seconds of compute between two times."""
        return self._until(end) - self._until(begin)

    def _until(self, time: float) -> float:
        running = bisect_right(self._starts, time) - 1
        if running < 0:
            return 0.0
        return self._before[running] + min(self._seconds[running], time - self._starts[running])
