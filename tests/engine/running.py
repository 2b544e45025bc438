"""Execution of single graphs; a test may replace kernels by Python functions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from runner.engine.compile.passes.order_writes import order_writes
from runner.engine.compile.planner import Part
from runner.engine.compile.program import Client, Program
from runner.engine.graph import GPU, Cluster, Device, DeviceName, Graph, Tensor, local_cluster
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.local_session import LocalSession
from runner.engine.run.rendezvous import LocalRendezvous
from runner.engine.run.storage import Arena, VariableStore
from runner.engine.run.wires import HostWires
from runner.kernels.contract import Array, Attributes, Choice, Kernel, Layout, Operand, Spec
from runner.kernels.functions import arrange_plain, function_kernel
from runner.kernels.platform import HostPlatform
from runner.kernels.registry import Registry
from tests.engine.run.fake_kernels import decode, encode

Function = Callable[..., Any]

CPU_0 = "/job:worker/task:0/device:cpu:0"
CPU_1 = "/job:worker/task:1/device:cpu:0"
GPU_0 = "/job:worker/task:0/device:gpu:0"


def cluster_of(*names: str, **rates: float) -> Cluster:
    """Return a cluster of equally fast devices."""
    gpus = {name: 0 if DeviceName.parse(name).type == GPU else None for name in names}
    return Cluster(tuple(Device(name, gpu=gpu, **rates) for name, gpu in gpus.items()))


def client(
    name: str, fetches: Iterable[Tensor] = (), *, targets: Sequence[str] = (), feeds: Iterable[Tensor] = ()
) -> Client:
    """Return a client whose fetches and feeds have the names of their tensors."""
    return Client(name, {str(t): t for t in fetches}, targets=tuple(targets), feeds={str(t): (t,) for t in feeds})


@contextmanager
def session(
    graph: Graph, registry: Registry, *clients: Client, cluster: Cluster | None = None, **options: Any
) -> Iterator[LocalSession]:
    """Yield a session with the given clients of a graph, by default on one device."""
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
    """Run a graph without variables once, and return the fetches."""
    feeds = feeds or {}
    with session(graph, registry, client("run", fetches, feeds=feeds), cluster=cluster) as opened:
        fetched = opened.run("run", feeds={str(tensor): value for tensor, value in feeds.items()})
    return [fetched[str(tensor)] for tensor in fetches]


class Bench:
    """An executor for a graph on one device, with variables and a rendezvous. arena: None for a new arena."""

    def __init__(
        self,
        graph: Graph,
        registry: Registry,
        fetches: Sequence[Tensor] = (),
        *,
        check_finite: bool = False,
        arena: Arena | None = None,
    ) -> None:
        feeds = {node[0]: node[0] for node in graph if node.op == "placeholder"}
        self.plan = Part(order_writes(graph), tuple(fetches), feeds).plan(CPU_0, registry, {})
        self.variables = VariableStore(HostPlatform(registry.join))
        self.arena = arena or Arena()
        self.rendezvous = LocalRendezvous(timeout_s=0.01)
        self.executor = DeviceExecutor(
            self.plan, registry, self.variables, self.arena, HostWires(self.rendezvous), check_finite=check_finite
        )

    def run(self, feeds: Mapping[Tensor, Array] | None = None, step: int = 0) -> dict[Tensor, Array]:
        return self.executor.run(step, feeds or {})

    def put(self, name: str, value: Array) -> None:
        """Set the value of a variable and mark the variable as assigned."""
        encode(self._stored(name), value)
        self.variables.mark_assigned(frozenset({name}))

    def value(self, name: str) -> Array:
        """Return a copy of a variable's value."""
        return decode(self._stored(name))

    def _stored(self, name: str) -> Operand:
        slot = self.plan.variables[name]
        return Operand(slot.spec, slot.layout, self.variables.memory(name, slot))


class Replaced(Registry):
    """A registry in which functions, given by a test, replace the kernels of some ops."""

    def __init__(self, base: Registry, functions: Mapping[str, Function]) -> None:
        super().__init__()
        self.join = base.join
        self._base = base
        self._functions = functions

    def choose(
        self,
        op: str,
        device_type: str,
        attributes: Attributes,
        inputs: Sequence[Spec],
        outputs: Sequence[Spec],
        offered: Sequence[Layout | None],
    ) -> Choice:
        if op not in self._functions:
            return self._base.choose(op, device_type, attributes, inputs, outputs, offered)
        arrangement = arrange_plain(attributes, inputs, outputs, offered)
        return Choice(self.find(op, device_type, "test"), arrangement)

    def find(self, op: str, device_type: str, library: str) -> Kernel:
        if library != "test":
            return self._base.find(op, device_type, library)
        return function_kernel(op, self._functions[op], library="test")

    def device_types(self, op: str) -> frozenset[str]:
        return self._base.device_types(op)
