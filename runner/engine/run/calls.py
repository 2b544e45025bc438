"""Calls of a step: as few as possible or, if instructions are timed or checked, one for each instruction.

If a node's output is not finite, :class:`FiniteCheck` restores the node's variables and raises an error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.engine.run.binding import Binding
from runner.engine.run.recording import COMPUTE, RECEIVE, SEND, WAIT, PlanRun, Recorder
from runner.engine.run.storage import allocate
from runner.errors import NumericError
from runner.kernels.contract import native_calls
from runner.kernels.memory import Bytes
from runner.kernels.platform import Platform, Work

Call = Callable[[], int | None]


@dataclass(frozen=True)
class CallGroup:
    """One call: consecutive instructions that the platform has fused, or the function of a single instruction.

    A part is one of the calls that were fused into the group. call: returns 0 or None on success, and
    ``((1 + part) << 16) | status`` if a part failed. instructions: for each part, the position of its instruction in
    the plan; without parts, the position of the first instruction. reason: (part, status) -> message. late: returns, in
    the same form, the code of a failure that occurred after ``call`` had returned.
    """

    call: Call
    instructions: tuple[int, ...]
    reason: Callable[[int, int], str] | None = None
    late: Callable[[], int] | None = None


def join_calls(platform: Platform, works: Sequence[Work]) -> list[CallGroup]:
    """Fuse neighbouring calls that the platform can join. works: one Work for each instruction, in order.

    A call that waits for a tensor begins a new group, unless the call before it waits too, because the platform repeats
    a group from its start until the waiting calls succeed.
    """
    groups: list[list[tuple[int, Work]]] = []
    for position, work in enumerate(works):
        before = works[position - 1] if position else None
        together = before is not None and platform.joinable(before.call) and platform.joinable(work.call)
        if before is None or not together or (_waits(work) and not _waits(before)):
            groups.append([])
        groups[-1].append((position, work))
    return [_call_group(platform, group) for group in groups]


def _waits(work: Work) -> bool:
    return any(call.retry is not None for call in native_calls(work.call))


def separate_calls(platform: Platform, works: Sequence[Work]) -> list[CallGroup]:
    """Make one call for each instruction, so that each can be timed or checked."""
    return [_call_group(platform, [each], once=True) for each in enumerate(works)]


def _call_group(platform: Platform, works: Sequence[tuple[int, Work]], *, once: bool = False) -> CallGroup:
    (first, work), *_ = works
    if callable(work.call):
        return CallGroup(work.call, (first,))
    together = platform.join([each for _, each in works], once=once)
    positions = tuple(works[owner][0] for owner in together.owners) or (first,)
    return CallGroup(together.call, positions, together.reason, together.late)


@dataclass(frozen=True)
class TimedCalls:
    """Functions that time each call of one device's bound plan. current_run: returns the current run of the plan."""

    bound: Binding
    recorder: Recorder
    current_run: Callable[[], PlanRun]

    def wrap(self, position: int, call: Call) -> Call:
        """Return the timed call of an instruction. For a receive, the wait is a separate span."""
        op = self.bound.plan.instructions[position].op
        if op == "recv":
            return self._receive(position)
        kind, platform = SEND if op == "send" else COMPUTE, self.bound.variables.platform

        def done() -> int | None:
            status = call()
            platform.finish()
            return status

        return lambda: self.recorder.timed(self.current_run(), position, kind, done)

    def _receive(self, position: int) -> Callable[[], None]:
        """Return a receive whose two parts are timed: the wait for the tensor, and its check or copy."""
        wait, take, _ = self.bound.receiver(self.bound.plan.instructions[position])

        def finish_receive(value: Any) -> None:
            take(value)
            self.bound.variables.platform.finish()

        def receive() -> None:
            run = self.current_run()
            value = self.recorder.timed(run, position, WAIT, lambda: wait(run.step))
            self.recorder.timed(run, position, RECEIVE, lambda: finish_receive(value))

        return receive


@dataclass
class FiniteCheck:
    """A check that all node outputs of one device's bound plan are finite.

    A node may write its output directly into a variable's memory. The check copies such a variable before the node
    runs, and restores it if the output is not finite. Raises ResourceError if there is no memory for the copies.
    """

    bound: Binding

    def __post_init__(self) -> None:
        self._plan, self._platform = self.bound.plan, self.bound.variables.platform
        sizes = [sum(data.nbytes for data in self._variables(k)) for k in range(len(self._plan.instructions))]
        self._copies = allocate(self._platform, max(sizes, default=0), "copies of variables for the finiteness check")

    def wrap(self, position: int, call: Call) -> Call:
        """Return the call of an instruction followed by the check; the check raises NumericError naming the node."""
        save, restore, begin = [], [], 0
        for variable in self._variables(position):
            copied = self._copies[begin : begin + variable.nbytes]
            save.append(self._copy(copied, variable))
            restore.append(self._copy(variable, copied))
            begin += variable.nbytes

        def run() -> int | None:
            for copy in save:
                copy()
            status = call()
            if not status:
                try:
                    self._refuse_non_finite(position)
                except NumericError:
                    for copy in restore:
                        copy()
                    raise
            return status

        return run

    def _variables(self, position: int) -> list[Bytes]:
        """Return the memory of the variables that an instruction overwrites with its outputs."""
        outputs = self._plan.instructions[position].outputs
        return [self.bound.operands[slot].data for slot in outputs if self._plan.places[slot].variable is not None]

    def _copy(self, target: Bytes, source: Bytes) -> Call:
        call = self._platform.copier(target, source)
        return call if callable(call) else self._platform.join([Work(call, (source,), (target,))], once=True).call

    def _refuse_non_finite(self, position: int) -> None:
        instruction = self._plan.instructions[position]
        for port, slot in enumerate(instruction.outputs):
            spec, data = self._plan.slots[slot].spec, self._platform.snapshot(self.bound.operands[slot].data)
            if not spec.is_float or data.nbytes % np.dtype(spec.dtype).itemsize:
                continue
            value = data.view(spec.dtype)
            if not np.isfinite(value).all():
                bad = int(value.size - np.isfinite(value).sum())
                raise NumericError(
                    f"node {instruction.node!r} (op {instruction.op!r}), output {port}: {bad} of "
                    f"{spec.size} values are not finite in step {self.bound.step()}; no earlier node produced "
                    "such values"
                )
