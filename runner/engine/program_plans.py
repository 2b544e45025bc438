"""The plans of one program's clients: made when first asked for, and all agreeing on how variables lie in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from runner.engine.compile import Compiled, Signature, compile_placed, placed_graph
from runner.engine.deferred import require_one_way
from runner.engine.device import Cluster
from runner.engine.graph import Graph
from runner.engine.plan import DevicePlan
from runner.engine.program import Client, Program
from runner.errors import RunnerError
from runner.kernels.contract import Layout
from runner.kernels.registry import Registry


class ProgramPlans:
    """Compiles and plans clients of one program, each once.

    What trains is planned first, whoever is asked for: it decides the layouts of the variables, and the other
    clients take them as they are.
    """

    def __init__(self, program: Program, cluster: Cluster, registry: Registry) -> None:
        """Raises RunnerError for clients that would share a plan and must not."""
        _require_own_plans(program.clients.values())
        self._program = program
        self._cluster = cluster
        self._registry = registry
        self._compiled: dict[Signature, Compiled] = {}
        self._plans: dict[Signature, Mapping[str, DevicePlan]] = {}
        self._layouts: dict[str, dict[str, Layout]] = {}
        self._training_is_planned = False

    def client(self, name: str) -> Client:
        """The client called ``name``; raises RunnerError listing the clients there are."""
        if name not in self._program.clients:
            raise RunnerError(f"client {name!r}: the program has {', '.join(sorted(self._program.clients))}")
        return self._program.clients[name]

    def compiled(self, signature: Signature) -> Compiled:
        """A signature, cut by device."""
        if signature not in self._compiled:
            self._compiled[signature] = compile_placed(self._placed, signature, self._cluster, self._registry)
        return self._compiled[signature]

    @cached_property
    def _placed(self) -> Graph:
        return placed_graph(self._program.graph, self._cluster, self._registry)

    def plans(self, signature: Signature) -> Mapping[str, DevicePlan]:
        """The plan of each device that takes part."""
        if not self._training_is_planned:
            for client in self._program.training:
                training = self._plan(client.signature)
                if client.deferred:
                    require_one_way(client.name, training)
            self._training_is_planned = True
        return self._plan(signature)

    def layouts(self, device: str) -> Mapping[str, Layout]:
        """Layouts of a device's variables, as far as plans have decided them."""
        return self._layouts.get(device, {})

    def _plan(self, signature: Signature) -> Mapping[str, DevicePlan]:
        if signature not in self._plans:
            made = {}
            for device, part in self.compiled(signature).parts.items():
                settled = self._layouts.setdefault(device, {})
                made[device] = part.plan(device, self._registry, dict(settled))
                settled.update(made[device].layouts)
            self._plans[signature] = made
        return self._plans[signature]


def _require_own_plans(clients: Iterable[Client]) -> None:
    """Raise RunnerError for two deferred clients of one signature, that is of one plan, that need a plan each.

    They may be under way together, and a plan has one place for what it is fed, sends and fetches.
    """
    first: dict[Signature, Client] = {}
    for client in clients:
        other = first.setdefault(client.signature, client)
        if other is not client and other.deferred and client.deferred:
            raise RunnerError(
                f"clients {other.name!r} and {client.name!r} run the same nodes with the same fetches and feeds, and "
                "both are deferred: give each nodes of its own, or launch one of them"
            )
