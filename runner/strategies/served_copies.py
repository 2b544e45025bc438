"""Variables that servers keep, as a worker has them between fetches: copies of its own."""

from __future__ import annotations

from collections.abc import Iterable

from runner.engine import ops
from runner.engine.tensor import Tensor
from runner.engine.variables import Variable
from runner.strategies.synchronous.parameter_server import Reads


class Copies(Reads):
    """The trained variables on the worker's device, without a value before they are fetched.

    What is not trained stays with its server: moving averages are advanced there, and no training step reads them.
    """

    def fetch(self, copies: Iterable[Variable]) -> list[str]:
        """Add what brings the served values to copies; returns the assign nodes. Scope and device are the caller's."""
        targets = []
        for copy in copies:
            with self.graph.layer(copy.layer):
                targets.append(ops.assign(self.graph, copy.tensor, self._served[copy.name].tensor).node)
        return targets

    def _at_hand(self, variable: Variable) -> Tensor:
        if not variable.trainable:
            return variable.tensor
        return ops.variable(self.graph, variable.spec.shape, variable.spec.dtype, name=variable.name)
