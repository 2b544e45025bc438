"""Whatever layouts kernels want and whatever memory they spoil, a step computes what the reference kernels compute.

Random graphs meet random kernels, which spoil all that they may (see :mod:`tests.engine.fake_kernels`); so a value that
is read from the wrong place, too late, or in another layout than it has, shows as garbage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runner.engine import ops
from runner.engine.device import local_cluster
from runner.engine.graph import Graph
from runner.engine.tensor import Tensor
from runner.kernels.registry import Registry
from runner.optimizers.momentum import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.fake_kernels import reference_registry, whimsical_registry
from tests.engine.random_graphs import Sample, TrainingSample, samples, training_samples
from tests.engine.running import Bench, client, run_once, session
from tests.oracles import evaluate
from tests.strategies.networks import NETWORKS, task_of
from tests.strategies.training import expect_same_bits, trained

Array = NDArray[Any]
Values = dict[Tensor, Array]

STEPS = 2
SEEDS = st.integers(0, 2**32)
_GIVEN = ("placeholder", "variable")
STATEFUL = st.sampled_from(["float64", "float32"]).flatmap(lambda dtype: training_samples(dtype=dtype, controls=False))


@settings(max_examples=100)
@given(sample=samples(), seed=SEEDS)
def test_graphs_without_state(sample: Sample, seed: int) -> None:
    registry = whimsical_registry(seed)
    found = run_once(sample.graph, registry, sample.fetches, sample.feeds, cluster=local_cluster(sample.devices))
    for value, expected in zip(found, evaluate(sample.graph, sample.fetches, sample.feeds), strict=True):
        np.testing.assert_array_equal(value, expected)


@dataclass(frozen=True)
class Course:
    """What a graph computes, step after step: the fetched values of each, and the variables at the end."""

    fetched: list[list[Array]]
    variables: list[Array]


@dataclass(frozen=True)
class Stateful:
    """A sample, taken apart. placeholders, variables: with the values that they have (first)."""

    graph: Graph
    fetches: Sequence[Tensor]
    assigns: Sequence[str]
    placeholders: Values
    variables: Values
    devices: int

    @classmethod
    def of(cls, sample: TrainingSample) -> Stateful:
        """Its parts."""
        graph = sample.graph
        given = {op: {t: v for t, v in sample.feeds.items() if graph.nodes[t.node].op == op} for op in _GIVEN}
        assigns = [node.name for node in graph if node.op == "assign"]
        return cls(graph, sample.fetches, assigns, given["placeholder"], given["variable"], sample.devices)

    def expected(self) -> Course:
        """By the reference kernels, one node after the other: an assign is a value for the next step."""
        graph = Graph()
        for node in self.graph:
            value = replace(node, op="identity", inputs=node.inputs[1:], colocate_with=())
            graph.insert(value if node.op == "assign" else node)
        assigned = {self.graph.nodes[name].inputs[0]: Tensor(name) for name in self.assigns}
        values, fetched = dict(self.variables), []
        for _ in range(STEPS):
            with np.errstate(all="ignore"):
                found = evaluate(graph, [*self.fetches, *assigned.values()], {**self.placeholders, **values})
            fetched.append(found[: len(self.fetches)])
            values.update(zip(assigned, found[len(self.fetches) :], strict=True))
        return Course(fetched, list(values.values()))

    def in_a_session(self, registry: Registry) -> Course:
        """By all of the engine. The variables are restored first and fetched last."""
        graph = self.graph
        sources = {
            variable: ops.placeholder(graph, value.shape, value.dtype.name)
            for variable, value in self.variables.items()
        }
        restoring = [ops.assign(graph, variable, source).node for variable, source in sources.items()]
        clients = [
            client("restore", targets=restoring, feeds=sources.values()),
            client("train", self.fetches, targets=self.assigns, feeds=self.placeholders),
            client("save", self.variables),
        ]
        with session(graph, registry, *clients, cluster=local_cluster(self.devices)) as opened:
            opened.run("restore", feeds={str(sources[variable]): value for variable, value in self.variables.items()})
            feeds = {str(tensor): value for tensor, value in self.placeholders.items()}
            steps = [opened.run("train", step=step, feeds=feeds) for step in range(STEPS)]
            return Course([list(fetched.values()) for fetched in steps], list(opened.run("save").values()))

    def on_a_bench(self, registry: Registry) -> Course:
        """By an executor that is given the graph as it is, on one device."""
        bench = Bench(self.graph, registry, self.fetches)
        for variable, value in self.variables.items():
            bench.put(variable.node, value)
        fetched = [list(bench.run(self.placeholders, step).values()) for step in range(STEPS)]
        return Course(fetched, [bench.value(variable.node) for variable in self.variables])


def expect_equal(found: Course, expected: Course) -> None:
    for mine, theirs in zip([*found.fetched, found.variables], [*expected.fetched, expected.variables], strict=True):
        for value, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(value, other)


@settings(max_examples=60)
@given(sample=STATEFUL, seed=SEEDS)
def test_graphs_with_state_in_a_session(sample: TrainingSample, seed: int) -> None:
    stateful = Stateful.of(sample)
    expected = stateful.expected()
    expect_equal(stateful.in_a_session(whimsical_registry(seed)), expected)


@settings(max_examples=60)
@given(sample=STATEFUL, seed=SEEDS)
def test_graphs_with_state_as_they_are(sample: TrainingSample, seed: int) -> None:
    stateful = Stateful.of(sample)
    expect_equal(stateful.on_a_bench(whimsical_registry(seed)), stateful.expected())


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_training_of_networks_by_two_workers(network: str) -> None:
    strategy, task = SyncData(workers=2), task_of(NETWORKS[network], Momentum(), batch_size=6)
    weights, history = trained(strategy, task, reference_registry(), STEPS)
    for seed in range(4):
        found, course = trained(strategy, task, whimsical_registry(seed), STEPS)
        assert course == history
        expect_same_bits(found, weights)
