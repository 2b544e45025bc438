"""Vectors over all trained variables, with one piece on the device of each variable, and the clients that use them.

The coordinator of L-BFGS holds no parameters (Dean et al. 2012, section 4.2): it sends commands, and the devices that
hold the pieces compute, store the results and return only scalars.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from runner.engine.compile.program import Client
from runner.engine.graph import Constant, Expr, Graph, StateUpdate, Tensor, TensorSpec, Variable, Variables, ops
from runner.errors import ConfigError
from runner.optimizers.base import Optimizer, State
from runner.optimizers.lbfgs import GRADIENT, WORKING, Add, Command, Dot, Scale, X, commands, pair_names

RECALL, REMEMBER = "recall", "remember"
"""Names of the clients that read and write the number of pairs (s, y) in the history and their products s'y and y'y."""

FACTOR, PAIRS, PRODUCTS = "factor", "lbfgs/pairs", "lbfgs/products"
"""Names of feeds and fetches; the last two are also names of variables."""


def require_no_averages(updates: Sequence[StateUpdate]) -> None:
    """Raise ConfigError if a network has moving averages, because each point of a line search would advance them."""
    if updates:
        raise ConfigError(
            f"optimizer=lbfgs: the network has moving averages such as {updates[0].variable.name!r}, which would "
            "advance at every point of a line search; use a network without batch normalisation, or another optimizer"
        )


@dataclass(frozen=True)
class Objective:
    """Nodes of the objective. targets: nodes that store its gradient. penalties: name -> summand of the penalty, ()."""

    targets: tuple[str, ...]
    penalties: Mapping[str, Tensor]


class Vectors:
    """The vectors of L-BFGS over the trained variables of a store, each with one piece per variable.

    The pairs (s, y) of the history, their number "lbfgs/pairs" () int64 and their products s'y and y'y,
    "lbfgs/products" (2, history) float64, are variables of the store and saved in checkpoints. With P trained values,
    the history has 2 * history * P values. Another 4 P values are used within one iteration and are not saved.
    """

    def __init__(self, graph: Graph, variables: Variables, history: int) -> None:
        self._graph = graph
        self._variables = variables
        self._history = history
        self.trained = variables.trainable
        self._pieces = {X: [variable.tensor for variable in self.trained]}
        for name in WORKING:
            self._pieces[name] = [self.new_like(variable, f"lbfgs/{name}") for variable in self.trained]
        for place in range(history):
            for name in pair_names(place):
                self._pieces[name] = [variables.slot(variable, name).tensor for variable in self.trained]
        self._factors: dict[str, Tensor] = {}
        for device in dict.fromkeys(map(variables.device_of, self.trained)):
            with graph.absolute_scope("lbfgs"), graph.device(device):
                self._factors[device] = ops.placeholder(graph, (), self.trained[0].spec.dtype, name=FACTOR)

    def new_like(self, variable: Variable, scope: str) -> Tensor:
        """Add a state tensor with the shape, dtype and device of a variable; checkpoints do not contain the tensor."""
        with self._graph.absolute_scope(scope), self._at(variable):
            return ops.variable(self._graph, variable.spec.shape, variable.spec.dtype, name=variable.name)

    def objective(self, optimizer: Optimizer, totals: Sequence[Tensor]) -> Objective:
        """Add the gradient of the objective: the loss plus weight_decay / 2 * w'w for each decayed variable w.

        totals: the gradient of the loss for each variable in :attr:`trained`, in the same order.
        """
        graph, targets, penalties = self._graph, [], {}
        for variable, total, gradient in zip(self.trained, totals, self._pieces[GRADIENT], strict=True):
            with graph.absolute_scope(f"lbfgs/objective/{variable.name}"), self._at(variable):
                penalised = optimizer.with_decay(State.of(self._variables, variable), Expr(graph, total))
                targets.append(ops.assign(graph, gradient, penalised.tensor).node)
                if optimizer.weight_decay and variable.decayed:
                    square = ops.reduce_sum(graph, ops.square(graph, variable.tensor))
                    penalties[f"penalty {variable.name}"] = ops.scale(graph, square, 0.5 * optimizer.weight_decay)
        return Objective(tuple(targets), penalties)

    def clients(self, *, deferred: bool) -> list[Client]:
        """Return one client per command, named by the command's text, and clients :data:`RECALL` and :data:`REMEMBER`.

        A dot product is fetched as one number per variable, so that the sum does not depend on the placement.
        """
        return [*(self._client(each, deferred) for each in commands(self._history)), *self._numbers(deferred)]

    def _client(self, command: Command, deferred: bool) -> Client:
        name, values = str(command), []
        with self._graph.absolute_scope(f"lbfgs/commands/{name.replace(' ', '/')}"):
            for place, variable in enumerate(self.trained):
                with self._at(variable):
                    values.append(self._computed(command, place))
            if isinstance(command, Dot):
                fetches = {variable.name: value for variable, value in zip(self.trained, values, strict=True)}
                return Client(name, fetches=fetches, deferred=deferred)
            pieces = zip(self._pieces[command.into], values, strict=True)
            targets = tuple(ops.assign(self._graph, piece, value).node for piece, value in pieces)
        return Client(name, targets=targets, feeds={FACTOR: tuple(self._factors.values())}, deferred=deferred)

    def _computed(self, command: Command, place: int) -> Tensor:
        """Add the result of a command for the piece at ``place``; for a dot product, a scalar."""
        graph, factor = self._graph, self._factors[self._variables.device_of(self.trained[place])]
        match command:
            case Dot(a, b):
                return ops.reduce_sum(graph, ops.mul(graph, self._pieces[a][place], self._pieces[b][place]))
            case Scale(_, a):
                return ops.mul(graph, self._pieces[a][place], factor)
            case Add(_, a, b):
                return ops.add(graph, self._pieces[a][place], ops.mul(graph, self._pieces[b][place], factor))

    def _numbers(self, deferred: bool) -> list[Client]:
        """Return the clients that read and write the number of pairs and the pairs' products."""
        graph, device = self._graph, next(iter(self._factors))
        specs = {PAIRS: TensorSpec((), "int64"), PRODUCTS: TensorSpec((2, self._history), "float64")}
        kept = {
            name: self._variables.get(name, spec, Constant(), trainable=False, device=device)
            for name, spec in specs.items()
        }
        fed, targets = {}, []
        with graph.absolute_scope("lbfgs/remember"), graph.device(device):
            for name, variable in kept.items():
                fed[name] = (ops.placeholder(graph, variable.spec.shape, variable.spec.dtype),)
                targets.append(ops.assign(graph, variable.tensor, fed[name][0]).node)
        recalled = {name: variable.tensor for name, variable in kept.items()}
        return [
            Client(RECALL, fetches=recalled, deferred=deferred),
            Client(REMEMBER, targets=tuple(targets), feeds=fed, deferred=deferred),
        ]

    @contextmanager
    def _at(self, variable: Variable) -> Iterator[None]:
        """Add nodes on the device of a variable, in its layer."""
        with self._graph.device(self._variables.device_of(variable)), self._graph.layer(variable.layer):
            yield
