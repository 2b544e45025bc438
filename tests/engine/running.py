"""Running a bare graph, and kernels that misbehave on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.device import Cluster, Device, local_cluster
from runner.engine.executor import DeviceExecutor, VariableStore
from runner.engine.graph import Graph
from runner.engine.plan import plan_device
from runner.engine.program import Client, Program
from runner.engine.rendezvous import LocalRendezvous
from runner.engine.session import LocalSession
from runner.engine.tensor import Tensor
from runner.kernels.registry import Bound, Kernel, Registry, Spec

Array = NDArray[Any]
Function = Callable[..., Any]

CPU_0 = "/job:worker/task:0/device:cpu:0"
CPU_1 = "/job:worker/task:1/device:cpu:0"
GPU_0 = "/job:worker/task:0/device:gpu:0"


def cluster_of(*names: str, **rates: float) -> Cluster:
    """A cluster of devices of one speed."""
    return Cluster(tuple(Device(name, **rates) for name in names))


def client(
    name: str, fetches: Iterable[Tensor] = (), *, targets: Sequence[str] = (), feeds: Iterable[Tensor] = ()
) -> Client:
    """A client whose fetches and feeds are called as their tensors are written."""
    return Client(name, {str(t): t for t in fetches}, targets=tuple(targets), feeds={str(t): (t,) for t in feeds})


@contextmanager
def session(
    graph: Graph, registry: Registry, *clients: Client, cluster: Cluster | None = None, **options: Any
) -> Iterator[LocalSession]:
    """A session with these clients of a graph; on one device unless a cluster is given."""
    program = Program(graph, {each.name: each for each in clients}, {}, workers=1)
    opened = LocalSession(program, cluster or local_cluster(1), registry, **options)
    try:
        yield opened
    finally:
        opened.close()


def run_once(
    graph: Graph,
    registry: Registry,
    fetches: Sequence[Tensor],
    feeds: Mapping[Tensor, Array] | None = None,
    *,
    cluster: Cluster | None = None,
) -> list[Array]:
    """Fetch tensors of a graph without variables."""
    feeds = feeds or {}
    with session(graph, registry, client("run", fetches, feeds=feeds), cluster=cluster) as opened:
        fetched = opened.run("run", feeds={str(tensor): value for tensor, value in feeds.items()})
    return [fetched[str(tensor)] for tensor in fetches]


class Bench:
    """An executor for a graph, with its variables and its end of the rendezvous."""

    def __init__(
        self,
        graph: Graph,
        registry: Registry,
        fetches: Sequence[Tensor] = (),
        *,
        device: str = CPU_0,
        check_finite: bool = False,
    ) -> None:
        feeds = {node[0]: node[0] for node in graph if node.op == "placeholder"}
        self.variables = VariableStore()
        self.rendezvous = LocalRendezvous(timeout_s=0.01)
        self.executor = DeviceExecutor(
            plan_device(device, graph, fetches, feeds),
            registry,
            self.variables,
            self.rendezvous,
            check_finite=check_finite,
        )

    def run(self, feeds: Mapping[Tensor, Array] | None = None, step: int = 0) -> dict[Tensor, Array]:
        return self.executor.run(step, feeds or {})


class Replaced(Registry):
    """A registry in which some ops are computed by functions of a test."""

    def __init__(self, base: Registry, functions: Mapping[str, Function]) -> None:
        super().__init__()
        self._base = base
        self._functions = functions

    def select(self, op: str, device_type: str, dtypes: Iterable[str]) -> Kernel:
        """The test's kernel, or the base's."""
        if op not in self._functions:
            return self._base.select(op, device_type, dtypes)
        return Kernel(op, device_type, "test", 0, frozenset(dtypes), self._binder(self._functions[op]))

    def device_types(self, op: str) -> frozenset[str]:
        """As the base has them."""
        return self._base.device_types(op)

    @staticmethod
    def _binder(function: Function) -> Callable[..., Bound]:
        def bind(attributes: Mapping[str, Any], inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Bound:
            return lambda *arrays: (np.asarray(function(*arrays)),)

        return bind
