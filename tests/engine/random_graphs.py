"""Random graphs for laws: small tensors, several outputs, shared inputs, control edges, any devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from runner.engine import ops
from runner.engine.device import worker_device
from runner.engine.graph import Graph
from runner.engine.tensor import Tensor

SIZE = 4


@dataclass(frozen=True)
class Sample:
    """A graph with values for its placeholders and tensors to fetch. devices: how many it is written for."""

    graph: Graph
    feeds: dict[Tensor, NDArray[np.float64]]
    fetches: list[Tensor]
    devices: int


@st.composite
def samples(draw: st.DrawFn, *, max_devices: int = 4, free: bool = True) -> Sample:
    """Draw a graph of up to 24 nodes; free: leave the device of some of them open."""
    graph = Graph()
    devices = draw(st.integers(1, max_devices))
    places = [worker_device(k) for k in range(devices)] + ([""] if free else [])
    tensors: list[Tensor] = []
    for k in range(draw(st.integers(1, 2))):
        with graph.device(draw(st.sampled_from(places))):
            tensors.append(ops.placeholder(graph, (SIZE,), "float64", name=f"x{k}"))
    feeds = {x: np.linspace(-1.0, 1.0 + k, SIZE) for k, x in enumerate(tensors)}
    for _ in range(draw(st.integers(1, 12))):
        controls = draw(st.lists(st.sampled_from(sorted(graph.nodes)), max_size=2, unique=True))
        with graph.device(draw(st.sampled_from(places))), graph.control_dependencies(controls):
            tensors.append(_drawn_node(draw, graph, tensors, places))
    fetches = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=4, unique=True))
    return Sample(graph, feeds, fetches, devices)


def _drawn_node(draw: st.DrawFn, graph: Graph, tensors: list[Tensor], places: list[str]) -> Tensor:
    a, b, c = (draw(st.sampled_from(tensors)) for _ in range(3))
    kind = draw(st.sampled_from(["add", "mul", "tanh", "add_n", "swap"]))
    if kind == "add":
        return ops.add(graph, a, b)
    if kind == "mul":
        return ops.mul(graph, a, b)
    if kind == "tanh":
        return ops.tanh(graph, a)
    if kind == "add_n":
        return ops.add_n(graph, [a, b, c])
    # Two outputs of one node, which meet again on perhaps another device.
    low, high = ops.split(graph, a, 0, (1, SIZE - 1))
    with graph.device(draw(st.sampled_from(places))):
        return ops.concat(graph, [high, low], axis=0)
