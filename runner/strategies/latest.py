"""Several updates of the same variables within one step: values flow from one to the next and are assigned once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.engine.graph import ops
from runner.engine.graph.expression import Expr
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.variables import Declaration, Variable, Variables
from runner.optimizers.base import Optimizer, State


class Latest(Variables):
    """A store in the middle of a step: its variables and their slots with their values so far.

    Any variable of the store can be had by name. Iteration goes over those that were declared or changed here.
    """

    def __init__(self, store: Variables) -> None:
        super().__init__(store.graph, seed=store.seed, prefix=store.prefix, device=store.device)
        self._store = store

    def __getitem__(self, name: str) -> Variable:
        return super().__getitem__(name) if name in self._by_name else self._store[name]

    def update(
        self, optimizer: Optimizer, gradients: Sequence[tuple[Variable, Tensor]], learning_rate: Tensor, step: Tensor
    ) -> None:
        """Add an update by gradients that are clipped already; from here on variables and slots have the new values.

        gradients: with the variables they are for, whose values so far are updated. step: () int64, the number of the
        update.
        """
        rule = optimizer.rule(Expr(self.graph, learning_rate), Expr(self.graph, step))
        for variable, gradient in gradients:
            with self.graph.name_scope(variable.name), self.graph.layer(variable.layer):
                values = rule(State.of(self, self.now(variable)), Expr(self.graph, gradient))
                self.advance([(state.variable, value.tensor) for state, value in values])

    def advance(self, values: Sequence[tuple[Variable, Tensor]]) -> None:
        """Go on from these values."""
        for variable, value in values:
            self._by_name.setdefault(variable.name, {})[variable.part] = replace(variable, tensor=value)

    def now(self, variable: Variable) -> Variable:
        """The store's variable of this name and part, with its value so far."""
        held = self._by_name.get(variable.name, {})
        return held[variable.part] if variable.part in held else self._store.counterpart(variable)

    def assign(self) -> list[str]:
        """Keep the values so far for the next step; returns the assign nodes to run."""
        targets = []
        for latest in self:
            kept = self._store.counterpart(latest)
            if latest.tensor != kept.tensor:
                with self.graph.name_scope(latest.name), self.graph.layer(latest.layer):
                    targets.append(ops.assign(self.graph, kept.tensor, latest.tensor).node)
        return targets

    def _create(self, declared: Declaration, device: str) -> Variable:
        return self._store.declare(declared, device)
