"""Several updates of the same variables within one step: values flow from one to the next and are assigned once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.engine import ops
from runner.engine.tensor import Tensor
from runner.engine.variables import Declaration, Variable, Variables
from runner.optimizers.base import Optimizer


class Latest(Variables):
    """A store in the middle of a step: the variables that were asked for, with their values so far."""

    def __init__(self, store: Variables) -> None:
        super().__init__(store.graph, seed=store.seed, prefix=store.prefix, device=store.device)
        self._store = store

    def update(
        self, optimizer: Optimizer, gradients: Sequence[tuple[Variable, Tensor]], learning_rate: Tensor, step: Tensor
    ) -> None:
        """Add an update by gradients that are clipped already; from here on variables and slots have the new values.

        gradients: of variables of this store, at their values so far. step: () int64, the number of the update.
        """
        rule = optimizer.rule(self.graph, self, learning_rate, step)
        for variable, gradient in gradients:
            with self.graph.name_scope(variable.name), self.graph.layer(variable.layer):
                for changed, value in rule(variable, gradient):
                    self._by_name[changed.name][changed.part] = replace(changed, tensor=value)

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
