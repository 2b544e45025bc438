"""Variables on parameter servers: their distribution, the workers' views of them, and their updates."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from runner.engine.graph import ops
from runner.engine.graph.device import server_task, worker_task
from runner.engine.graph.expression import Expr
from runner.engine.graph.graph import Graph
from runner.engine.graph.network import StateUpdate
from runner.engine.graph.rows import Gradient, Rows
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.engine.graph.variables import Declaration, Part, Variable, Variables
from runner.errors import ConfigError
from runner.optimizers.base import assign_by
from runner.strategies.base import Workload
from runner.strategies.replica import Replica, advance, rate_input, shares


class ServedVariables(Variables):
    """The variables of a workload in a new graph, distributed over servers, with their optimizer slots.

    lookups: number of examples of the smallest share; 0 if the servers look up no rows. Otherwise, they look up the
    rows of each table whose gradient holds rows for such a share
    (:meth:`~runner.strategies.replica.Replica.differentiate`). If the table has at least as many columns as there are
    servers, its columns are divided nearly equally over the servers. The sizes of messages then do not depend on the
    indices, unlike with ranges of rows. Other variables are kept whole and distributed by size.

    placed: name of a whole variable -> device of its server. columns: name of a table that is cut -> its parts and
    their devices. remote: names of the tables whose rows are looked up on the servers, and of their copies. carries:
    whether workers can carry state from step to step. Raises ConfigError if a server has no variable.
    """

    def __init__(self, workload: Workload, servers: int, *, carries: bool = True, lookups: int = 0) -> None:
        super().__init__(Graph(), seed=workload.seed)
        self.carries = carries
        self.workload = workload
        scratch = Replica(Graph(), workload, device="")
        forward = scratch.forward((0, lookups or 1), "train")
        specs = {each.name: each.spec for each in scratch.variables if each.part is None}
        pairs = scratch.differentiate(forward) if lookups and forward.lookups else []
        self.remote = {variable.name for variable, gradient in pairs if isinstance(gradient, Rows)}
        self.columns = {
            name: [(Part(spec, 1, *share), server_task(j)) for j, share in enumerate(shares(spec.shape[1], servers))]
            for name, spec in specs.items()
            if name in self.remote and spec.rank > 1 and spec.shape[1] >= servers > 1
        }
        whole = {name: spec for name, spec in specs.items() if name not in self.columns}
        # Every server has columns of each table that is cut, so a server may have no whole variable.
        filled = shard_by_size(whole, min(servers, len(whole)) if self.columns else servers) if whole else {}
        self.placed = {name: server_task(j) for name, j in filled.items()}

    def replica(
        self, index: int, view: "type[ReadVariables]", role: str = "replica", workload: Workload | None = None
    ) -> Replica:
        """Return a copy of the network on worker ``index``, in the scope ``{role}_{index}``.

        view: the class of the worker's view of the variables. workload: the copy's workload; None for the store's.
        """
        device, prefix = worker_task(index), f"{role}_{index}"
        seen = view(self, prefix=prefix, device=device)
        return Replica(
            self.graph,
            workload or self.workload,
            device=device,
            prefix=prefix,
            variables=seen,
            batch_size=self.workload.batch_size,
            carries=self.carries,
        )


class ReadVariables(Variables):
    """A worker's view of the served variables; each variable is sent to the worker once per step."""

    def __init__(self, served: ServedVariables, *, prefix: str, device: str) -> None:
        """prefix: the prefix of the names of the worker's nodes. device: the worker's device."""
        super().__init__(served.graph, seed=served.seed, prefix=prefix, device=device)
        self._served = served

    def copy(self, of: Variable, name: str) -> Variable:
        """Return the worker's view of a copy of a variable on its server; see :meth:`Variables.copy`."""
        kept = [self._served.copy(part, name) for part in self._served.parts(of.name)]
        if of.name in self._served.remote:
            self._served.remote.add(kept[0].name)
        if kept[0].name not in self:
            self._by_name[kept[0].name] = {None: self._view_of(kept)}
        return self[kept[0].name]

    def lookup(self, table: Variable, indices: Tensor) -> Tensor:
        """Add nodes that select rows of a table: on its servers if the table is remote, otherwise on the worker."""
        if table.name not in self._served.remote:
            return super().lookup(table, indices)
        graph, rows = self.graph, []
        for part in self._served.parts(table.name):
            with graph.device(self._served.device_of(part)):
                rows.append(self._served.lookup(part, indices))
        return self._on_worker(rows, graph.spec(indices).rank, "looked_up")

    def _create(self, declared: Declaration, device: str) -> Variable:
        if declared.part is not None:
            # The rows of carried state stay on the worker that computes them.
            return self._served.declare(declared, self.device)
        if declared.name not in self._served.columns:
            return self._view_of([self._served.declare(declared, self._served.placed[declared.name])])
        columns = self._served.columns[declared.name]
        return self._view_of(
            [self._served.declare(replace(declared, spec=part.spec, part=part), where) for part, where in columns]
        )

    def _view_of(self, parts: Sequence[Variable]) -> Variable:
        """Return a served variable with the tensor that the worker reads. parts: the whole variable, or its parts."""
        graph, first = self.graph, parts[0]
        with graph.absolute_scope(f"{self.prefix}/read"), graph.device(self.device), graph.layer(first.layer):
            # Gradients are taken with respect to this node, so that their partial sums are computed on the worker.
            if first.part is None:
                return replace(first, tensor=self._local_tensor(first))
            tensor = self._on_worker([part.tensor for part in parts], first.part.axis, first.name)
            return replace(first, tensor=tensor, spec=first.whole, part=None)

    def _on_worker(self, parts: Sequence[Tensor], axis: int, name: str) -> Tensor:
        """Add a node of the worker that reads a tensor, or that joins its parts."""
        with self.graph.device(self.device):
            if len(parts) == 1:
                return ops.identity(self.graph, parts[0], name=name)
            return ops.concat(self.graph, parts, axis=axis, name=name)

    def _local_tensor(self, variable: Variable) -> Tensor:
        return ops.identity(self.graph, variable.tensor, name=variable.name)


class CopiedVariables(ReadVariables):
    """A worker's view of the served variables; trained variables are copied to the worker by :meth:`fetch`.

    A copy has no value before the first fetch. Variables that are not trained have no copies: moving averages are
    updated on their server, and no training step reads them.
    """

    def fetch(self, copies: Iterable[Variable]) -> list[str]:
        """Assign the served values to copies, in the current scope and device; return the assign nodes."""
        targets = []
        for copy in copies:
            with self.graph.layer(copy.layer):
                targets.append(ops.assign(self.graph, copy.tensor, self._served[copy.name].tensor).node)
        return targets

    def _local_tensor(self, variable: Variable) -> Tensor:
        if not variable.trainable:
            return variable.tensor
        return ops.variable(self.graph, variable.spec.shape, variable.spec.dtype, name=variable.name)


def shard_by_size(specs: Mapping[str, TensorSpec], servers: int) -> dict[str, int]:
    """Distribute whole variables over servers: the largest first, each to the server with the fewest bytes so far.

    specs: name -> spec. Equally large variables keep the order of ``specs``. Of servers with equal bytes, the one with
    fewer variables is chosen. Returns name -> server, ordered like ``specs``. Raises ConfigError if a server is empty.
    """
    if servers > len(specs):
        raise ConfigError(
            f"parallelism.servers={servers}: the network has {len(specs)} variables, and each is kept whole on one "
            f"server; use {len(specs)} servers or fewer"
        )
    # Variables without elements add no bytes, so the number of variables breaks the tie.
    bytes_and_number = [(0, 0)] * servers
    chosen: dict[str, int] = {}
    for name in sorted(specs, key=lambda name: -specs[name].nbytes):
        nbytes, number = min(bytes_and_number)
        server = chosen[name] = bytes_and_number.index((nbytes, number))
        bytes_and_number[server] = nbytes + specs[name].nbytes, number + 1
    return {name: chosen[name] for name in specs}


class Server:
    """One parameter server: its device, and its placeholders for the step number and the learning rate."""

    def __init__(self, graph: Graph, workload: Workload, index: int) -> None:
        self.device = server_task(index)
        self.scope = f"server_{index}"
        with graph.absolute_scope(self.scope), graph.device(self.device):
            self.step = ops.placeholder(graph, (), "int64", name="step")
            self.learning_rate = rate_input(graph, workload)


def update_served(
    served: ServedVariables,
    servers: Sequence[Server],
    gradients: Sequence[tuple[Variable, Gradient]],
    state_updates: Sequence[StateUpdate],
) -> list[str]:
    """Add the updates of all variables and moving averages on their servers; return the assign nodes to run.

    state_updates: the requested updates of the workers' views of the averages.
    """
    graph, optimizer, rules = served.graph, served.workload.optimizer, {}
    for server in servers:
        with graph.absolute_scope(f"{server.scope}/update"), graph.device(server.device):
            rate, step = Expr(graph, server.learning_rate), Expr(graph, server.step)
            rules[server.device] = optimizer.updates(rate, step)
    targets: list[str] = []
    for variable, gradient in gradients:
        device = served.device_of(variable)
        with graph.absolute_scope("update"), graph.device(device):
            targets += assign_by(rules[device], served, variable, gradient)
    for update in state_updates:
        average = served[update.variable.name]
        with graph.absolute_scope("update"), graph.device(served.device_of(average)):
            targets.append(advance(graph, replace(update, variable=average)))
    return targets
