"""Several updates of the same variables within one step, with one assignment at the end."""

from collections.abc import Sequence
from dataclasses import replace

from runner.engine.graph import Declaration, Expr, Gradient, Tensor, Variable, Variables, ops
from runner.optimizers.base import Optimizer, updated


class Latest(Variables):
    """A view of a store of variables between the updates of a step: variables and slots with their latest values.

    Every variable of the store can be accessed by name. Iteration covers only variables that this view has changed.
    """

    def __init__(self, store: Variables) -> None:
        super().__init__(store.graph, seed=store.seed, prefix=store.prefix, device=store.device)
        self._store = store

    def __getitem__(self, name: str) -> Variable:
        return super().__getitem__(name) if name in self._by_name else self._store[name]

    def update(
        self, optimizer: Optimizer, gradients: Sequence[tuple[Variable, Gradient]], learning_rate: Tensor, step: Tensor
    ) -> None:
        """Add an update from clipped gradients; afterwards, this view has the new values of variables and slots.

        gradients: pairs of variable and gradient. step: () int64, the number of the update.
        """
        rule = optimizer.updates(Expr(self.graph, learning_rate), Expr(self.graph, step))
        for variable, gradient in gradients:
            with self.graph.name_scope(variable.name), self.graph.layer(variable.layer):
                self.advance(updated(rule, self, self.now(variable), gradient))

    def advance(self, values: Sequence[tuple[Variable, Tensor]]) -> None:
        """Set the latest values of variables."""
        for variable, value in values:
            self._by_name.setdefault(variable.name, {})[variable.part] = replace(variable, tensor=value)

    def now(self, variable: Variable) -> Variable:
        """Return the store's variable of this name and part, with its latest value."""
        held = self._by_name.get(variable.name, {})
        return held[variable.part] if variable.part in held else self._store.counterpart(variable)

    def assign(self) -> list[str]:
        """Assign the latest values to the variables of the store; return the assign nodes to run."""
        targets = []
        for latest in self:
            kept = self._store.counterpart(latest)
            if latest.tensor != kept.tensor:
                with self.graph.name_scope(latest.name), self.graph.layer(latest.layer):
                    targets.append(ops.assign(self.graph, kept.tensor, latest.tensor).node)
        return targets

    def _create(self, declared: Declaration, device: str) -> Variable:
        return self._store.declare(declared, device)
