"""A step computes the reference result for any layouts that kernels request and any memory that they overwrite.

Random graphs run on random kernels that overwrite all memory that they are allowed to overwrite (see
:mod:`tests.engine.run.fake_kernels`). A value read from a wrong place, too late or in a wrong layout is garbage.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.engine.graph import Graph, Tensor, local_cluster, ops
from runner.kernels.contract import Array
from runner.kernels.registry import Registry
from runner.optimizers import Momentum
from runner.strategies import SyncData
from tests.engine.graph.random_graphs import Sample, samples, training_samples
from tests.engine.run.fake_kernels import random_registry, reference_registry
from tests.engine.running import Bench, client, run_once, session
from tests.oracles import evaluate
from tests.strategies.networks import NETWORKS, workload_of
from tests.strategies.training import expect_same_bits, trained

Values = dict[Tensor, Array]

STEPS = 2
SEEDS = st.integers(0, 2**32)
_GIVEN = ("placeholder", "variable")
STATEFUL = st.sampled_from(["float64", "float32"]).flatmap(lambda dtype: training_samples(dtype=dtype, controls=False))


@settings(max_examples=100)
@given(sample=samples(), seed=SEEDS)
def test_graphs_without_state_compute_the_reference_result(sample: Sample, seed: int) -> None:
    registry = random_registry(seed)
    found = run_once(sample.graph, registry, sample.fetches, sample.feeds, cluster=local_cluster(sample.devices))
    for value, expected in zip(found, evaluate(sample.graph, sample.fetches, sample.feeds), strict=True):
        np.testing.assert_array_equal(value, expected)


Results = list[list[Array]]  # the fetched values of each step, then the values of the variables after the last step


@dataclass(frozen=True)
class Stateful:
    """A graph with state. placeholders: the fed values. variables: the initial values."""

    graph: Graph
    fetches: Sequence[Tensor]
    assigns: Sequence[str]
    placeholders: Values
    variables: Values
    devices: int

    @classmethod
    def of(cls, sample: Sample) -> "Stateful":
        graph = sample.graph
        given = {op: {t: v for t, v in sample.feeds.items() if graph.nodes[t.node].op == op} for op in _GIVEN}
        assigns = [node.name for node in graph if node.op == "assign"]
        return cls(graph, sample.fetches, assigns, given["placeholder"], given["variable"], sample.devices)

    def expected(self) -> Results:
        """Evaluate each node with the reference kernels; a variable has its assigned value from the next step on."""
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
        return [*fetched, list(values.values())]

    def in_a_session(self, registry: Registry) -> Results:
        """Set the variables in a session, run the steps, and fetch the variables."""
        graph = self.graph
        sources = {w: ops.placeholder(graph, value.shape, value.dtype.name) for w, value in self.variables.items()}
        restoring = [ops.assign(graph, variable, source).node for variable, source in sources.items()]
        clients = [
            client("restore", targets=restoring, feeds=sources.values()),
            client("train", self.fetches, targets=self.assigns, feeds=self.placeholders),
            client("save", self.variables),
        ]
        with session(graph, registry, *clients, cluster=local_cluster(self.devices)) as opened:
            opened.run("restore", feeds={str(sources[variable]): value for variable, value in self.variables.items()})
            feeds = {str(tensor): value for tensor, value in self.placeholders.items()}
            runs = [opened.run("train", step=step, feeds=feeds) for step in range(STEPS)]
            return [list(fetched.values()) for fetched in (*runs, opened.run("save"))]

    def on_a_bench(self, registry: Registry) -> Results:
        """Run the steps of the unoptimized graph with one executor."""
        bench = Bench(self.graph, registry, self.fetches)
        for variable, value in self.variables.items():
            bench.put(variable.node, value)
        fetched = [list(bench.run(self.placeholders, step).values()) for step in range(STEPS)]
        return [*fetched, [bench.value(variable.node) for variable in self.variables]]


def expect_equal(found: Results, expected: Results) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        for value, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(value, other)


@settings(max_examples=60)
@given(sample=STATEFUL, seed=SEEDS)
def test_graphs_with_state_compute_the_reference_result_in_a_session(sample: Sample, seed: int) -> None:
    stateful = Stateful.of(sample)
    expected = stateful.expected()
    expect_equal(stateful.in_a_session(random_registry(seed)), expected)


@settings(max_examples=60)
@given(sample=STATEFUL, seed=SEEDS)
def test_graphs_with_state_compute_the_reference_result_on_one_executor(sample: Sample, seed: int) -> None:
    stateful = Stateful.of(sample)
    expect_equal(stateful.on_a_bench(random_registry(seed)), stateful.expected())


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_training_by_two_workers_does_not_depend_on_layouts(network: str) -> None:
    strategy, workload = SyncData(workers=2), workload_of(NETWORKS[network], Momentum(), batch_size=6)
    weights, history = trained(strategy, workload, STEPS, registry=reference_registry())
    for seed in range(4):
        found, losses = trained(strategy, workload, STEPS, registry=random_registry(seed))
        assert losses == history
        expect_same_bits(found, weights)


ROOT = Path(__file__).parents[2]
HASH_SEEDS = ("1", "2")


def digest() -> str:
    """Return a digest of the plans of some random graphs with random kernels."""
    found: list[str] = []

    @settings(max_examples=20)
    @given(sample=training_samples(controls=False), seed=st.integers(0, 2**32))
    def note(sample: Sample, seed: int) -> None:
        plan = Bench(sample.graph, random_registry(seed), sample.fetches).plan
        found.append(f"{seed} {plan.instructions} {plan.slots} {plan.places}")

    note()
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def test_plans_are_equal_under_any_hash_seed() -> None:
    code = "import tests.conftest; from tests.engine.run.test_arbitrary_layouts import digest; print(digest())"
    start = partial(subprocess.Popen, [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    processes = [start(env={**os.environ, "PYTHONHASHSEED": seed}) for seed in HASH_SEEDS]
    digests = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * len(HASH_SEEDS)
    assert len(digests) == 1
