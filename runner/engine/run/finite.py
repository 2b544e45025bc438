"""Check that every node's output is finite, and refuse the first other value before a variable keeps it."""

from collections.abc import Callable, Sequence

import numpy as np

from runner.engine.compile.plan import DevicePlan
from runner.engine.run.binding import Binding
from runner.engine.run.storage import allocate
from runner.errors import NumericError
from runner.kernels.memory import Bytes
from runner.kernels.platform import Platform, Work

Call = Callable[[], int | None]


class FiniteCheck:
    """The check for one device's bound plan. step: returns the number of the current step.

    A node may compute directly in a variable's memory. The check copies such variables before the node runs and
    restores them if the output is refused, which takes as much memory as the variables of one node. Raises
    ResourceError if that memory is not available.
    """

    def __init__(self, plan: DevicePlan, bound: Binding, platform: Platform, step: Callable[[], int]) -> None:
        self._plan = plan
        self._bound = bound
        self._platform = platform
        self._step = step
        sizes = [sum(data.nbytes for data in self._variables(k)) for k in range(len(plan.instructions))]
        self._copies = allocate(platform, max(sizes, default=0), "copies of variables for the finiteness check")

    def wrap(self, position: int, call: Call) -> Call:
        """Return the call of an instruction with the check; it raises NumericError naming the node."""
        variables, begin = self._variables(position), 0
        pairs: list[tuple[Bytes, Bytes]] = []
        for variable in variables:
            pairs.append((variable, self._copies[begin : begin + variable.nbytes]))
            begin += variable.nbytes
        save = [self._copy(copied, variable) for variable, copied in pairs]
        restore = [self._copy(variable, copied) for variable, copied in pairs]

        def run() -> int | None:
            _call_all(save)
            status = call()
            if not status:
                try:
                    self._refuse_non_finite(position)
                except NumericError:
                    _call_all(restore)
                    raise
            return status

        return run

    def _variables(self, position: int) -> list[Bytes]:
        """Return the memory of the variables in which an instruction computes."""
        outputs = self._plan.instructions[position].outputs
        return [self._bound.operands[slot].data for slot in outputs if self._plan.places[slot].variable is not None]

    def _copy(self, target: Bytes, source: Bytes) -> Call:
        call = self._platform.copier(target, source)
        return call if callable(call) else self._platform.join([Work(call, (source,), (target,))], once=True).call

    def _refuse_non_finite(self, position: int) -> None:
        instruction = self._plan.instructions[position]
        for port, slot in enumerate(instruction.outputs):
            spec, data = self._plan.slots[slot].spec, self._platform.snapshot(self._bound.operands[slot].data)
            if not spec.is_float or data.nbytes % np.dtype(spec.dtype).itemsize:
                continue
            value = data.view(spec.dtype)
            if not np.isfinite(value).all():
                bad = int(value.size - np.isfinite(value).sum())
                raise NumericError(
                    f"node {instruction.node!r} (op {instruction.op!r}), output {port}: {bad} of "
                    f"{spec.size} values are not finite in step {self._step()}; it is the first node that "
                    "produced any"
                )


def _call_all(calls: Sequence[Call]) -> None:
    for call in calls:
        call()
