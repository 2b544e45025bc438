"""Looking at what every node computes: the first value that is not finite is refused, before a variable has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from runner.engine.binding import Binding
from runner.engine.plan import DevicePlan
from runner.engine.storage import allocate
from runner.errors import NumericError
from runner.kernels.platform import Bytes, Platform, Work

Call = Callable[[], int | None]


class FiniteCheck:
    """Of one device's bound plan. What a node computes right in a variable's memory is put back where it is refused.

    For that it has as much memory as the variables of one node. Raises ResourceError where that is not to be had.
    step: tells which step is under way.
    """

    def __init__(self, plan: DevicePlan, bound: Binding, platform: Platform, step: Callable[[], int]) -> None:
        self._plan = plan
        self._bound = bound
        self._platform = platform
        self._step = step
        sizes = [sum(data.nbytes for data in self._variables(k)) for k in range(len(plan.instructions))]
        self._kept = allocate(platform, max(sizes, default=0), "what variables have before they are checked")

    def checked(self, position: int, call: Call) -> Call:
        """The call of an instruction, which then raises NumericError naming the node if an output is not finite."""
        variables, begin = self._variables(position), 0
        pairs: list[tuple[Bytes, Bytes]] = []
        for variable in variables:
            pairs.append((variable, self._kept[begin : begin + variable.nbytes]))
            begin += variable.nbytes
        keep = [self._copy(kept, variable) for variable, kept in pairs]
        put_back = [self._copy(variable, kept) for variable, kept in pairs]

        def run() -> int | None:
            _call_all(keep)
            status = call()
            if not status:
                try:
                    self._refuse_non_finite(position)
                except NumericError:
                    _call_all(put_back)
                    raise
            return status

        return run

    def _variables(self, position: int) -> list[Bytes]:
        """The memory of variables that an instruction computes in."""
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
