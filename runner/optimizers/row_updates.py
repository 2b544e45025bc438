"""Updates of some rows of a table and of its slots, with the same formulas as for a whole variable."""

from dataclasses import replace

from runner.engine.graph import Rows, Tensor, Variable, Variables, ops


class TouchedRows(Variables):
    """A view of a store that has only those rows of a table and of its slots to which a gradient refers.

    Each tensor of the view has the shape (n, ...), for n indices. total: (n, ...), the gradient of each row: the sum of
    all values with this index. If an index occurs several times, the same update is computed for each occurrence.
    """

    def __init__(self, store: Variables, gradient: Rows) -> None:
        super().__init__(store.graph, seed=store.seed, prefix=store.prefix, device=store.device)
        self._store = store
        self._indices = gradient.indices
        self._tables: dict[Tensor, Variable] = {}
        self.total, _ = ops.add_equal_rows(store.graph, gradient.indices, gradient.values)

    def of(self, table: Variable) -> Variable:
        """Return a variable of the store, with the rows of this view as its tensor."""
        rows = self._store.lookup(table, self._indices)
        self._tables[rows] = table
        return replace(table, tensor=rows)

    def table(self, rows: Variable) -> Variable:
        """Return the whole table of the store to which ``rows`` belong."""
        return self._tables[rows.tensor]

    def put(self, rows: Variable, values: Tensor) -> Tensor:
        """Add a node that returns the table of ``rows`` with these rows replaced by ``values`` (n, ...)."""
        return ops.put_rows(self.graph, self.table(rows).tensor, self._indices, values)

    def slot(self, of: Variable, name: str, initial: float = 0.0) -> Variable:
        """Return the rows of a slot; see :meth:`Variables.slot`."""
        return self.of(self._store.slot(self.table(of), name, initial))

    def copy(self, of: Variable, name: str) -> Variable:
        """Return the rows of a copy; see :meth:`Variables.copy`."""
        return self.of(self._store.copy(self.table(of), name))
