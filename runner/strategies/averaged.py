"""The view of a store of variables through which evaluations read averaged weights (``optimizer.average``)."""

from dataclasses import replace

from runner.engine.graph.variables import Declaration, Variable, Variables
from runner.optimizers.averages import AVERAGE


class Averaged(Variables):
    """A view of a store in which each trained variable has the value of its average."""

    def __init__(self, store: Variables) -> None:
        super().__init__(store.graph, seed=store.seed, prefix=store.prefix, device=store.device)
        self._store = store

    def _create(self, declared: Declaration, device: str) -> Variable:
        variable = self._store.declare(declared, device)
        if not variable.trainable:
            return variable
        return replace(variable, tensor=self._store.copy(variable, AVERAGE).tensor)
