"""The view of a store of variables through which evaluations read averaged weights (``optimizer.average``)."""

from dataclasses import replace

from runner.engine.graph import Declaration, Tensor, Variable, Variables
from runner.optimizers.averages import AVERAGE


class Averaged(Variables):
    """A view of a store in which each trained variable has the value of its average."""

    def __init__(self, store: Variables) -> None:
        super().__init__(store.graph, seed=store.seed, prefix=store.prefix, device=store.device)
        self._store = store

    def lookup(self, table: Variable, indices: Tensor) -> Tensor:
        """Add a node that selects rows of the average of a table; if the table is not trained, rows of the table."""
        own = self._store[table.name]
        return self._store.lookup(self._store.copy(own, AVERAGE) if own.trainable else own, indices)

    def _create(self, declared: Declaration, device: str) -> Variable:
        variable = self._store.declare(declared, device)
        if not variable.trainable:
            return variable
        return replace(variable, tensor=self._store.copy(variable, AVERAGE).tensor)
