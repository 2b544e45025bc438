"""The plans of a program's clients, made on first use, with the same layouts of variables for all clients."""

from collections.abc import Iterable, Mapping
from functools import cached_property

from runner.engine.compile.compile import Compiled, compile_placed, device_types
from runner.engine.compile.cost import Seconds, node_seconds
from runner.engine.compile.placement import place
from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.program import Client, Program, Signature
from runner.engine.graph import Cluster, Graph
from runner.engine.graph.graph import without_collection
from runner.errors import RunnerError
from runner.kernels.contract import Layout
from runner.kernels.registry import Registry


class ProgramPlans:
    """The compiled clients and the plans of one program, each made once.

    Training clients are always planned first, and their plans decide the layouts of variables for all clients.
    """

    def __init__(self, program: Program, cluster: Cluster, registry: Registry, seconds: Seconds = node_seconds) -> None:
        """Prepare to plan the clients of a program; raises RunnerError if two deferred clients would share a plan.

        seconds: returns the duration of a node, for placement and scheduling.
        """
        _require_separate_plans(program.clients.values())
        self._program = program
        self._cluster = cluster
        self._registry = registry
        self._seconds = seconds
        self._compiled: dict[Signature, Compiled] = {}
        self._plans: dict[Signature, Mapping[str, DevicePlan]] = {}
        self._layouts: dict[str, dict[str, Layout]] = {}
        self._training_is_planned = False

    def client(self, name: str) -> Client:
        """Return the client with the given name; raises RunnerError listing the clients if there is none."""
        if name not in self._program.clients:
            raise RunnerError(f"client {name!r}: expected one of {', '.join(sorted(self._program.clients))}")
        return self._program.clients[name]

    def compiled(self, signature: Signature) -> Compiled:
        """Return the compiled signature; the first call compiles it."""
        if signature not in self._compiled:
            self._compiled[signature] = compile_placed(
                self._placed, signature, self._cluster, self._registry, seconds=self._seconds
            )
        return self._compiled[signature]

    @cached_property
    def _placed(self) -> Graph:
        """The whole graph with devices, so that each variable is on the same device for all signatures."""
        return place(self._program.graph, self._cluster, device_types(self._registry), self._seconds)

    @without_collection()
    def plans(self, signature: Signature) -> Mapping[str, DevicePlan]:
        """Return the plan of each device that a signature uses, by device name."""
        if not self._training_is_planned:
            for client in self._program.training:
                training = self._plan(client.signature)
                if client.deferred:
                    _require_one_way(client.name, training)
            self._training_is_planned = True
        return self._plan(signature)

    def layouts(self, device: str) -> Mapping[str, Layout]:
        """Return the layouts that plans have decided so far for a device's variables."""
        return self._layouts.get(device, {})

    def _plan(self, signature: Signature) -> Mapping[str, DevicePlan]:
        if signature not in self._plans:
            plans = {}
            for device, part in self.compiled(signature).parts.items():
                decided = self._layouts.setdefault(device, {})
                plans[device] = part.plan(device, self._registry, dict(decided))
                decided.update(plans[device].layouts)
            self._plans[signature] = plans
        return self._plans[signature]


def _require_separate_plans(clients: Iterable[Client]) -> None:
    """Raise RunnerError if two deferred clients have the same signature and therefore the same plan.

    Deferred clients may run concurrently, and a plan has memory for only one set of feeds, sent tensors and fetches.
    """
    first: dict[Signature, Client] = {}
    for client in clients:
        other = first.setdefault(client.signature, client)
        if other is not client and other.deferred and client.deferred:
            raise RunnerError(
                f"clients {other.name!r} and {client.name!r} are deferred and run the same nodes with the same fetches "
                "and feeds: give each client separate nodes, or launch only one of the clients"
            )


def _require_one_way(client: str, plans: Mapping[str, DevicePlan]) -> None:
    """Raise RunnerError if parts of a deferred client would wait for each other forever.

    A part starts when all of its inputs have arrived, so the transfers between devices must not form a cycle.
    """
    waiting = {device: set(plan.received_bytes) for device, plan in plans.items()}
    while started := {device for device, sources in waiting.items() if not sources}:
        waiting = {device: sources - started for device, sources in waiting.items() if device not in started}
    if waiting:
        raise RunnerError(
            f"client {client!r} is deferred, but {', '.join(sorted(waiting))} would wait for one another's tensors "
            "forever: split the client into two clients"
        )
