"""Compilation of a graph and a signature into one part per device."""

import numpy as np
import pytest

from runner.engine.compile.compile import compile_signature
from runner.engine.compile.passes.optimize import default_passes
from runner.engine.compile.placement import PlacementError
from runner.engine.compile.program import Signature
from runner.engine.graph import Graph, Tensor, local_cluster, ops
from runner.kernels.registry import Registry
from tests.engine.running import CPU_0, CPU_1, GPU_0, client, cluster_of, session


@pytest.fixture
def graph() -> Graph:
    """Return a graph with x on the first device, y on the second, and z = x + y on the first."""
    graph = Graph()
    with graph.device(CPU_0):
        x = ops.placeholder(graph, (2,), "float64", name="x")
    with graph.device(CPU_1):
        y = ops.neg(graph, x, name="y")
    with graph.device(CPU_0):
        ops.add(graph, x, y, name="z")
    return graph


TWO = local_cluster(2)
X, Y, Z = Tensor("x"), Tensor("y"), Tensor("z")


def test_parts_list_their_fetches_and_feeds(graph: Graph, registry: Registry) -> None:
    compiled = compile_signature(graph, Signature((Y, Z), (), (X,)), TWO, registry)
    assert compiled.location == {Y: (CPU_1, Y), Z: (CPU_0, Z)}
    assert {device: part.fetches for device, part in compiled.parts.items()} == {CPU_0: (Z,), CPU_1: (Y,)}
    assert compiled.parts[CPU_0].feeds == {X: Tensor("feed/x_0")}
    assert compiled.parts[CPU_1].feeds == {}


def test_fetch_of_a_fed_tensor_returns_its_placeholder(graph: Graph, registry: Registry) -> None:
    compiled = compile_signature(graph, Signature((Y, X), (), (X, Y)), TWO, registry)
    assert compiled.location == {Y: (CPU_1, Tensor("feed/y_0")), X: (CPU_0, Tensor("feed/x_0"))}


def test_devices_without_work_have_no_part(graph: Graph, registry: Registry) -> None:
    assert set(compile_signature(graph, Signature((Z,), (), (X, Y)), TWO, registry).parts) == {CPU_0, CPU_1}
    assert set(compile_signature(graph, Signature((X,), (), (X,)), TWO, registry).parts) == {CPU_0}


def test_passes_are_observed_in_order(graph: Graph, registry: Registry) -> None:
    seen: list[str] = []
    observe = lambda name, _: seen.append(name)  # noqa: E731
    compile_signature(graph, Signature((Z,), (), (X,)), TWO, registry, observe)
    optimizing = [each.name for each in default_passes(registry)]
    ordering = ["transfers", "recomputation", "writes"]
    assert seen == ["place", "prune", *optimizing, *ordering, f"split {CPU_0}", f"split {CPU_1}"]


def test_device_type_without_a_kernel_is_refused(registry: Registry) -> None:
    graph = Graph()
    with graph.device("/device:gpu"):
        x = ops.placeholder(graph, (2,), "float64", name="x")
        ops.neg(graph, x, name="y")
    with pytest.raises(PlacementError, match=r"node 'y' \(op 'neg'\) .* types with a kernel: \['cpu'\]"):
        compile_signature(graph, Signature((Y,), (), (X,)), cluster_of(CPU_0, GPU_0), registry)


def test_ops_of_the_executor_run_on_every_device_type(registry: Registry) -> None:
    graph = Graph()
    with graph.device(GPU_0):
        x = ops.placeholder(graph, (2,), "float64", name="x")
    compiled = compile_signature(graph, Signature((x,), (), (x,)), cluster_of(CPU_0, GPU_0), registry)
    assert set(compiled.parts) == {GPU_0}


def test_variable_without_a_constraint_is_on_one_device_for_all_signatures(registry: Registry) -> None:
    graph = Graph()
    names = [f"v{k}" for k in range(4)]
    for k, name in enumerate(names):
        v = ops.variable(graph, (1000,), "float64", name=name)
        ops.assign(graph, v, ops.fill(graph, float(k), (1000,), "float64"), name=f"set/{name}")
    clients = [client("init", targets=[f"set/{name}" for name in names])]
    clients += [client(name, [Tensor(name)]) for name in names]
    with session(graph, registry, *clients, cluster=TWO) as opened:
        assert set(opened.plans("init")) == {CPU_0, CPU_1}
        opened.run("init")
        values = [opened.run(name)[f"{name}:0"] for name in names]
    np.testing.assert_array_equal([value[0] for value in values], [0.0, 1.0, 2.0, 3.0])
